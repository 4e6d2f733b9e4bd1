// The report as one HTML file: the drawings of the dashboard's page (scheduler/dashboard/page) with data beside them. The
// file asks nobody for anything. A function without state.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace modelet::cli {

// `report`: what report.js reads.
std::string report_page(const nlohmann::json& report);

}  // namespace modelet::cli
