#include "scheduler/cli/serve/openapi.h"

#include <nlohmann/json.hpp>

#include "base/version.h"

namespace modelet::cli {
namespace {

// The part that does not depend on the options of the server.
constexpr const char* kDescription = R"({
  "openapi": "3.0.3",
  "info": {
    "title": "Modelet",
    "description": "The best labels of samples, from a model that was trained with Modelet."
  },
  "paths": {
    "/v1/predict": {
      "post": {
        "operationId": "predict",
        "summary": "The best labels of one sample, or of several",
        "requestBody": {
          "required": true,
          "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Question"}}}
        },
        "responses": {
          "200": {
            "description": "The labels, best first. 'predictions' answers 'samples', in their order.",
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Answer"}}}
          },
          "400": {"$ref": "#/components/responses/Error"},
          "401": {"$ref": "#/components/responses/Error"},
          "405": {"$ref": "#/components/responses/Error"},
          "408": {"$ref": "#/components/responses/Error"},
          "413": {"$ref": "#/components/responses/Error"},
          "415": {"$ref": "#/components/responses/Error"},
          "431": {"$ref": "#/components/responses/Error"},
          "500": {"$ref": "#/components/responses/Error"},
          "503": {"$ref": "#/components/responses/Error"}
        }
      }
    },
    "/v1/model": {
      "get": {
        "operationId": "model",
        "summary": "What is served",
        "responses": {
          "200": {"description": "The model", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Model"}}}},
          "401": {"$ref": "#/components/responses/Error"}
        }
      }
    },
    "/healthz": {
      "get": {
        "operationId": "health", "summary": "Whether the process lives", "security": [],
        "responses": {"200": {"description": "It does", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Status"}}}}}
      }
    },
    "/readyz": {
      "get": {
        "operationId": "ready", "summary": "Whether it accepts requests", "security": [],
        "responses": {
          "200": {"description": "It does", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Status"}}}},
          "503": {"$ref": "#/components/responses/Error"}
        }
      }
    },
    "/metrics": {
      "get": {
        "operationId": "metrics", "summary": "What was counted, for Prometheus",
        "responses": {
          "200": {"description": "Prometheus text format 0.0.4", "content": {"text/plain": {"schema": {"type": "string"}}}},
          "401": {"$ref": "#/components/responses/Error"}
        }
      }
    },
    "/openapi.json": {
      "get": {
        "operationId": "description", "summary": "This description",
        "responses": {
          "200": {"description": "OpenAPI 3", "content": {"application/json": {"schema": {"type": "object"}}}},
          "401": {"$ref": "#/components/responses/Error"}
        }
      }
    }
  },
  "components": {
    "responses": {
      "Error": {
        "description": "What is wrong, where, and what to do",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
      }
    },
    "schemas": {
      "Error": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}},
      "Status": {"type": "object", "required": ["status"], "properties": {"status": {"type": "string", "enum": ["ok"]}}},
      "OneValue": {"oneOf": [{"type": "string", "nullable": true}, {"type": "number"}, {"type": "boolean"}]},
      "Value": {
        "oneOf": [
          {"$ref": "#/components/schemas/OneValue"},
          {"type": "array", "items": {"$ref": "#/components/schemas/OneValue"}, "description": "Of a column of several values, or of words"}
        ]
      },
      "Sample": {
        "type": "object",
        "description": "Exactly one of the three",
        "additionalProperties": false,
        "properties": {
          "text": {"type": "string", "description": "Words, for models of text"},
          "fields": {
            "description": "Values by column, or of all 'columns' of the model in their order, for models of CSV and of tables; null: not known. With histories, the object may have 'history': earlier records of the entity",
            "oneOf": [
              {
                "type": "object",
                "properties": {
                  "history": {"type": "array", "items": {"type": "object", "additionalProperties": {"$ref": "#/components/schemas/Value"}}}
                },
                "additionalProperties": {"$ref": "#/components/schemas/Value"}
              },
              {"type": "array", "items": {"$ref": "#/components/schemas/Value"}}
            ]
          },
          "features": {
            "oneOf": [
              {"type": "string", "description": "FEATURE:VALUE, separated by spaces", "example": "7:0.5 9:1"},
              {
                "type": "object",
                "required": ["ids"],
                "additionalProperties": false,
                "properties": {
                  "ids": {"type": "array", "items": {"type": "integer", "minimum": 0}},
                  "values": {"type": "array", "items": {"type": "number"}, "description": "One for each id; all 1 without"}
                }
              }
            ]
          }
        }
      },
      "Question": {
        "type": "object",
        "description": "A sample, or several in 'samples'",
        "additionalProperties": false,
        "properties": {
          "text": {"$ref": "#/components/schemas/Sample/properties/text"},
          "fields": {"$ref": "#/components/schemas/Sample/properties/fields"},
          "features": {"$ref": "#/components/schemas/Sample/properties/features"},
          "samples": {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/Sample"}},
          "k": {"type": "integer", "minimum": 1, "default": 5, "description": "Labels of a sample"},
          "sparse": {
            "type": "boolean",
            "description": "Score only the likeliest labels; by default so if the server was started with --sparse"
          },
          "among": {
            "description": "Only these labels are answers: the name of a set of the server (--subset), or names and numbers of labels. All of them are scored",
            "oneOf": [
              {"type": "string"},
              {"type": "array", "minItems": 1, "items": {"oneOf": [{"type": "string"}, {"type": "integer", "minimum": 0}]}}
            ]
          },
          "threshold": {"type": "number", "description": "Labels with a lower probability are left out, or without probabilities those with a lower score"},
          "explain": {"type": "integer", "minimum": 1, "description": "For each label so many of the features that say most for or against it"}
        }
      },
      "Label": {
        "type": "object",
        "required": ["label", "score"],
        "properties": {
          "label": {"type": "integer", "minimum": 0},
          "name": {"type": "string", "description": "If the model knows names"},
          "score": {"type": "number", "description": "The logit: comparable within a sample"},
          "probability": {"type": "number", "minimum": 0, "maximum": 1, "description": "Of being right, if it could be calibrated"},
          "because": {"$ref": "#/components/schemas/Reasons"}
        }
      },
      "Reasons": {
        "type": "object",
        "description": "What the score consists of; all parts add up to it",
        "required": ["features", "other_features", "rest"],
        "properties": {
          "features": {
            "type": "array",
            "items": {
              "type": "object",
              "required": ["feature", "value", "share"],
              "properties": {"feature": {"type": "integer"}, "value": {"type": "number"}, "share": {"type": "number"}}
            }
          },
          "other_features": {"type": "number", "description": "The shares of the sample's other features together"},
          "rest": {"type": "number", "description": "What the label has without any feature"},
          "examples": {
            "type": "array",
            "description": "Training samples with the label that are most like the sample, if the server was started with --examples",
            "items": {
              "type": "object",
              "required": ["sample", "cosine"],
              "properties": {"sample": {"type": "integer"}, "cosine": {"type": "number"}}
            }
          }
        }
      },
      "Labels": {"type": "array", "items": {"$ref": "#/components/schemas/Label"}},
      "Answer": {
        "type": "object",
        "required": ["step"],
        "properties": {
          "step": {"type": "integer", "description": "Training step of the model"},
          "labels": {"$ref": "#/components/schemas/Labels"},
          "predictions": {
            "type": "array",
            "items": {"type": "object", "required": ["labels"], "properties": {"labels": {"$ref": "#/components/schemas/Labels"}}}
          }
        }
      },
      "Model": {
        "type": "object",
        "required": ["checkpoint", "step", "features", "labels", "hidden", "loss", "format", "columns", "sparse", "names", "probabilities",
                     "modelet_version"],
        "properties": {
          "checkpoint": {"type": "string"},
          "step": {"type": "integer"},
          "features": {"type": "integer"},
          "labels": {"type": "integer"},
          "hidden": {"type": "array", "items": {"type": "integer"}},
          "loss": {"type": "string"},
          "format": {"type": "string"},
          "columns": {"type": "array", "items": {"type": "string"}},
          "sparse": {"type": "boolean"},
          "names": {"type": "boolean"},
          "probabilities": {"type": "boolean"},
          "modelet_version": {"type": "string"}
        }
      }
    }
  }
})";

constexpr const char* kLabelledSamples = R"({"oneOf": [
      {"type": "string", "description": "Text as that of the training data, with labels"},
      {"type": "array", "items": {"type": "object"}, "description": "Columns and their values, labels included, for models of tables"}]})";

nlohmann::ordered_json action_parameter() {
  return {{"name", "X-Modelet-Action"}, {"in", "header"}, {"required", true}, {"schema", {{"type", "string"}}}};
}

nlohmann::ordered_json responses_of_change(const char* done, const char* schema) {
  using Json = nlohmann::ordered_json;
  const auto reference = [](const std::string& to) { return Json{{"$ref", to}}; };
  Json responses = {{"200", {{"description", done}, {"content", {{"application/json", {{"schema", reference(schema)}}}}}}}};
  for (const char* status : {"400", "401", "403", "405", "408", "413", "415", "431", "500", "503"})
    responses[status] = reference("#/components/responses/Error");
  return responses;
}

void add_update_path(nlohmann::ordered_json& description) {
  using Json = nlohmann::ordered_json;
  description["paths"]["/v1/update"]["post"] = {
      {"operationId", "update"},
      {"summary", "Add events to the histories of entities"},
      {"parameters", Json::array({action_parameter()})},
      {"requestBody",
       {{"required", true},
        {"content",
         {{"application/json",
           {{"schema", Json::parse(R"({"type": "object", "required": ["samples"], "additionalProperties": false,
         "properties": {"samples": {"$ref": "#/components/schemas/LabelledSamples"}}})")}}}}}}},
      {"responses", responses_of_change("Questions from now on know the events", "#/components/schemas/Updated")}};
  description["components"]["schemas"]["Updated"] = Json::parse(R"({"type": "object", "required": ["added", "unknown_labels", "step"],
      "properties": {"added": {"type": "integer", "description": "Events that were not known yet"},
      "unknown_labels": {"type": "integer", "description": "Labels that the model does not have"}, "step": {"type": "integer"}}})");
}

struct LabelChange {
  const char *name, *summary, *body;  // the schema of the body
};
constexpr LabelChange kLabelChanges[] = {
    {"add", "Add labels that the model does not have",
     R"({"type": "object", "required": ["samples"], "additionalProperties": false, "properties": {
         "samples": {"$ref": "#/components/schemas/LabelledSamples"},
         "names": {"type": "array", "items": {"type": "string"}, "description": "Of new labels, for XMC text whose labels have names"},
         "fit": {"type": "boolean", "default": true, "description": "false: new labels are known by their mean sample only"}}})"},
    {"learn", "Correct labels that the model has",
     R"({"type": "object", "required": ["samples"], "additionalProperties": false,
         "properties": {"samples": {"$ref": "#/components/schemas/LabelledSamples"}}})"},
    {"remove", "Remove labels, which are never again answers",
     R"({"type": "object", "required": ["labels"], "additionalProperties": false, "properties": {
         "labels": {"type": "array", "minItems": 1, "items": {"oneOf": [{"type": "string"}, {"type": "integer", "minimum": 0}]}}}})"},
    {"rename", "Give a label another name",
     R"({"type": "object", "required": ["label", "to"], "additionalProperties": false,
         "properties": {"label": {"type": "string"}, "to": {"type": "string"}}})"},
};

void add_label_paths(nlohmann::ordered_json& description) {
  using Json = nlohmann::ordered_json;
  for (const LabelChange& change : kLabelChanges) {
    description["paths"]["/v1/labels/" + std::string(change.name)]["post"] = {
        {"operationId", std::string(change.name) + "_labels"},
        {"summary", change.summary},
        {"parameters", Json::array({action_parameter()})},
        {"requestBody", {{"required", true}, {"content", {{"application/json", {{"schema", Json::parse(change.body)}}}}}}},
        {"responses", responses_of_change("The change is made, and the changed model is served", "#/components/schemas/ChangedLabels")}};
  }
  Json& schemas = description["components"]["schemas"];
  schemas["ChangedLabels"] = Json::parse(R"({"type": "object", "required": ["what", "checkpoint", "changed", "labels", "step"], "properties": {
      "event": {"type": "string"}, "what": {"type": "string"}, "checkpoint": {"type": "string"}, "changed": {"type": "integer"},
      "labels": {"type": "integer", "description": "That the model has now"}, "samples": {"type": "integer"},
      "background": {"type": "integer"}, "step": {"type": "integer", "description": "Of the model that answers from now on"}}})");
}

}  // namespace

std::string openapi_text(const RequestLimits& limits, bool token, bool change_labels, bool update) {
  using Json = nlohmann::ordered_json;
  Json description = Json::parse(kDescription);
  description["info"]["version"] = kVersion;
  if (change_labels) add_label_paths(description);
  if (update) add_update_path(description);
  if (change_labels || update) description["components"]["schemas"]["LabelledSamples"] = Json::parse(kLabelledSamples);
  auto& question = description["components"]["schemas"]["Question"]["properties"];
  question["k"]["maximum"] = limits.k;
  question["samples"]["maxItems"] = limits.samples;
  question["among"]["oneOf"][1]["maxItems"] = limits.among;
  question["explain"]["maximum"] = limits.reasons;
  if (token) {
    description["components"]["securitySchemes"]["token"] = {{"type", "http"}, {"scheme", "bearer"}};
    description["security"] = Json::array({Json{{"token", Json::array()}}});
  }
  return description.dump() + "\n";
}

}  // namespace modelet::cli
