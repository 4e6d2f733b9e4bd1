#include "base/text/parse_double.h"

#include <cmath>
#include <locale>
#include <sstream>
#include <string>
#include <system_error>

namespace modelet {

std::from_chars_result parse_double(const char* begin, const char* end, double& value) {
  std::from_chars_result result = std::from_chars(begin, end, value);
  if (result.ec != std::errc::result_out_of_range) return result;
  // from_chars does not say on which side of the range the number is. A stream reads 0 or the largest double.
  std::istringstream number(std::string(begin, result.ptr));
  number.imbue(std::locale::classic());
  double nearest = 0;
  number >> nearest;
  if (std::abs(nearest) > 1) return result;
  value = nearest;
  result.ec = {};
  return result;
}

}  // namespace modelet
