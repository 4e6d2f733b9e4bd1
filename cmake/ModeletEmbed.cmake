# Embeds files into C++: writes OUT, which defines `assets()` of scheduler/dashboard/assets.h. Run at build time:
#   cmake -DOUT=file.cc -DFILES=a;b -P ModeletEmbed.cmake
set(types "html=text/html" "css=text/css" "js=text/javascript" "mjs=text/javascript" "svg=image/svg+xml" "png=image/png"
          "txt=text/plain")
set(arrays)
set(rows)
set(number 0)
foreach(file ${FILES})
  cmake_path(GET file FILENAME name)
  cmake_path(GET file EXTENSION LAST_ONLY extension)
  set(type)
  foreach(each ${types})
    if(".${each}" MATCHES "^${extension}=(.*)$")
      set(type "${CMAKE_MATCH_1}")
    endif()
  endforeach()
  if(NOT type)
    message(FATAL_ERROR "${file}: no type is known for ${extension}: add it to cmake/ModeletEmbed.cmake")
  endif()
  if(NOT type MATCHES "^image/png")
    string(APPEND type "; charset=utf-8")
  endif()
  file(READ ${file} hex HEX)
  file(SHA256 ${file} hash)
  string(SUBSTRING ${hash} 0 16 tag)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(APPEND arrays "constexpr unsigned char kBytes${number}[] = {${bytes} 0};\n")
  string(APPEND rows "  Asset{\"${name}\", {reinterpret_cast<const char*>(kBytes${number}), sizeof kBytes${number} - 1}, \"${type}\", \"${tag}\"},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUT} "#include \"scheduler/dashboard/assets.h\"

#include <algorithm>
#include <array>

namespace modelet::scheduler {
namespace {

${arrays}
const std::array<Asset, ${number}> kAssets = {
${rows}};

}  // namespace

std::span<const Asset> assets() { return kAssets; }

const Asset* asset_named(std::string_view name) {
  const auto found = std::ranges::find(kAssets, name, &Asset::name);
  return found == kAssets.end() ? nullptr : &*found;
}

}  // namespace modelet::scheduler
")
