# Programs that bring their libraries in themselves: -DMODELET_PORTABLE_LIBRARIES=FOLDER of packaging/make-portable-libraries.sh.
# They need only the C library and run wherever it is new enough (packaging/check-portable.py). What is compiled is the same
# as with the system's shared libraries, so only the programs are linked again.
set(archives "${MODELET_PORTABLE_LIBRARIES}/lib")
string(TOUPPER "${CMAKE_BUILD_TYPE}" config)

# modelet_take_archive(TARGET FILE LIBRARY...): from now on the imported target is this archive, which needs these libraries.
function(modelet_take_archive target file)
  get_target_property(kind ${target} TYPE)
  if(NOT kind STREQUAL "INTERFACE_LIBRARY")
    set_target_properties(${target} PROPERTIES IMPORTED_LOCATION_${config} "${file}" IMPORTED_LOCATION_RELEASE "${file}")
    set(file "")
  endif()
  set_target_properties(${target} PROPERTIES INTERFACE_LINK_LIBRARIES "${file};${ARGN}")
endfunction()

# modelet_find_archive(VARIABLE NAME): libNAME.a of this system.
function(modelet_find_archive variable name)
  find_library(archive_${name} NAMES lib${name}.a REQUIRED)
  set(${variable} "${archive_${name}}" PARENT_SCOPE)
endfunction()

modelet_take_archive(fmt::fmt "${archives}/libfmt.a")
modelet_take_archive(spdlog::spdlog "${archives}/libspdlog.a" fmt::fmt Threads::Threads)
modelet_take_archive(tomlplusplus::tomlplusplus "${archives}/libtomlplusplus.a")
modelet_take_archive(hwy::hwy "${archives}/libhwy.a")
modelet_take_archive(TBB::tbb "${archives}/libtbb.a" Threads::Threads)
foreach(name sodium lz4 xxhash)
  modelet_find_archive(file ${name})
  modelet_take_archive(PkgConfig::${name} "${file}")
endforeach()
modelet_take_archive(PkgConfig::zmq "${archives}/libzmq.a" PkgConfig::sodium Threads::Threads)
modelet_find_archive(file sqlite3)
modelet_take_archive(SQLite::SQLite3 "${file}" m)
modelet_find_archive(file boost_iostreams)
set(needed)
foreach(name z bz2 lzma zstd)
  modelet_find_archive(archive ${name})
  list(APPEND needed "${archive}")
endforeach()
modelet_take_archive(Boost::iostreams "${file}" Boost::headers ${needed})
# The unwinder stays shared: its archive needs a newer C library than this, and every system has it.
add_link_options(-static-libstdc++)
add_library(modelet_older_system OBJECT "${PROJECT_SOURCE_DIR}/packaging/portable/arc4random.cc")
