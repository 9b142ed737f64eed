// Bodies as programs send them that people point at a local server (written anew after the shapes
// of their sources in November 2026). Each body is answered, whole and as a stream, and the answer
// says what is passed over; a strict server refuses a body that asks for more than it does.
#include <gtest/gtest.h>
#include <httplib.h>

#include <nlohmann/json.hpp>

#include "src/serve/http_server.h"
#include "tests/serve/running_server.h"

namespace sluice::serve {
namespace {

using nlohmann::json;

struct Body {
  const char* program;
  const char* path;
  const char* text;
  const char* passed_over;  // a word of what is not done; empty: all is
};

const Body kBodies[] = {
    {"Codex CLI", "/v1/responses",
     R"({"model": "stories", "instructions": "You are a coding agent.", "input": [
       {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>read-only</permissions>"}]},
       {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Lily"}]},
       {"type": "reasoning", "id": "rs_1", "summary": [], "content": null, "encrypted_content": "gAAA"},
       {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "shell", "arguments": "{\"command\": [\"ls\"]}"},
       {"type": "function_call_output", "call_id": "call_1", "output": "a.txt"},
       {"type": "web_search_call", "id": "ws_1", "status": "completed"},
       {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go on"}]}],
     "tools": [{"type": "function", "name": "shell", "description": "Runs a command", "strict": false, "parameters": {"type": "object",
         "properties": {"command": {"type": "array", "items": {"type": "string"}}, "timeout_ms": {"type": "number"}}, "required": ["command"], "additionalProperties": false}},
       {"type": "local_shell"}, {"type": "web_search", "external_web_access": true},
       {"type": "custom", "name": "apply_patch", "description": "Edits files", "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}}],
     "tool_choice": "auto", "parallel_tool_calls": false, "reasoning": {"effort": "medium", "summary": "detailed"}, "store": false,
     "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0199", "client_metadata": {"x": "y"}, "service_tier": "priority",
     "text": {"verbosity": "low"}, "max_output_tokens": 12})",
     "web_search"},
    {"Claude Code", "/v1/messages/?beta=true",
     R"({"model": "stories", "max_tokens": 12, "metadata": {"user_id": "u"}, "messages": [
       {"role": "user", "content": [{"type": "text", "text": "<system-reminder>be brief</system-reminder>"}, {"type": "text", "text": "Lily", "cache_control": {"type": "ephemeral"}}]},
       {"role": "assistant", "content": [{"type": "thinking", "thinking": "so", "signature": "x"}, {"type": "redacted_thinking", "data": "x"},
         {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}}]},
       {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "a.txt", "is_error": false}]},
       {"role": "system", "content": "Todo list is empty"}, {"role": "user", "content": "Go on"}],
     "tools": [{"name": "Bash", "description": "Runs a command", "input_schema": {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
         "properties": {"command": {"type": "string"}, "timeout": {"type": "number", "exclusiveMinimum": 0}}, "required": ["command"], "additionalProperties": false},
         "eager_input_streaming": true}, {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
     "thinking": {"type": "enabled", "budget_tokens": 1024}, "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
     "output_config": {"effort": "medium"}, "temperature": 1})",
     "budget_tokens"},
    {"OpenCode", "/v1/chat/completions",
     R"({"model": "stories", "max_tokens": 12, "messages": [{"role": "user", "content": "Lily"}],
     "tools": [{"type": "function", "function": {"name": "mcp__a_server_with_a_long_name__and_a_tool_whose_name_is_longer_than_sixty_four_letters", "description": "d",
         "parameters": {"type": "object", "properties": {"todos": {"type": "array", "uniqueItems": true, "items": {"type": "object", "properties": {"content": {"type": "string", "minLength": 1}},
         "required": ["content"], "additionalProperties": false}}}, "required": ["todos"], "additionalProperties": false, "$schema": "http://json-schema.org/draft-07/schema#"}}}],
     "tool_choice": "auto", "stream_options": {"include_usage": true}, "reasoningEffort": "medium"})",
     "reasoningEffort"},
    {"Cline", "/v1/chat/completions",
     R"({"model": "stories", "messages": [{"role": "user", "content": [{"type": "text", "text": "Lily"}]}],
     "temperature": 0, "stream_options": {"include_usage": true}, "max_completion_tokens": 12.0, "reasoning_effort": "low"})",
     "reasoning_effort"},
    {"Continue", "/v1/chat/completions",
     R"({"model": "stories", "messages": [{"role": "user", "content": "Lily"}], "max_tokens": 12,
     "stop": ["\n\n"], "prediction": {"type": "content", "content": "x"}, "keep_alive": 1800, "extra_body": {"a": 1}})",
     "extra_body"},
    {"aider", "/v1/chat/completions",
     R"({"model": "stories", "messages": [{"role": "user", "content": "Lily"}], "max_tokens": 12,
     "temperature": 0, "num_ctx": 8192, "extra_headers": {}})",
     "num_ctx"},
    {"Open WebUI", "/v1/chat/completions",
     R"({"model": "stories", "messages": [{"role": "user", "content": "Lily"}], "max_tokens": 12,
     "params": {}, "tool_servers": [], "features": {"web_search": false}, "variables": {"{{USER_NAME}}": "a"}, "session_id": "s", "chat_id": "c",
     "id": "i", "background_tasks": {"title_generation": true}, "metadata": {"task": "title_generation"}})",
     "features"},
    {"Open WebUI by Ollama", "/api/chat",
     R"({"model": "stories:latest", "messages": [{"role": "user", "content": "Lily", "images": []}],
     "options": {"num_ctx": 131072, "num_predict": 12, "repeat_last_n": 64, "repeat_penalty": 1.1, "num_keep": 24, "tfs_z": 1}, "keep_alive": 0, "think": true})",
     "num_ctx"},
    {"llama.cpp's page", "/v1/chat/completions",
     R"({"messages": [{"role": "user", "content": "Lily"}], "cache_prompt": true, "samplers": "edkypmxt",
     "temperature": 0.8, "dynatemp_range": 0, "dynatemp_exponent": 1, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "typ_p": 1, "xtc_probability": 0, "xtc_threshold": 0.1,
     "repeat_last_n": 64, "repeat_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0, "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2,
     "dry_penalty_last_n": -1, "max_tokens": -1, "n_predict": 12, "timings_per_token": true, "reasoning_format": "auto", "return_progress": true, "backend_sampling": false})",
     "samplers"},
    {"LM Studio", "/v1/chat/completions",
     R"({"model": "stories", "messages": [{"role": "user", "content": "Lily"}], "max_tokens": 12, "ttl": 300,
     "draft_model": "x", "repeat_penalty": 1.1})",
     "draft_model"},
    {"openai-agents", "/v1/responses",
     R"({"model": "stories", "input": "Lily", "max_output_tokens": 12, "include": [], "store": true, "truncation": "auto",
     "tools": [{"type": "function", "name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false}, "strict": true}],
     "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "add"}]},
     "text": {"format": {"type": "json_schema", "name": "o", "strict": true, "schema": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": false}}}})",
     "store"},
    {"LangChain", "/chat/completions/",
     R"({"model": "stories", "messages": [{"role": "user", "content": "Lily"}], "max_completion_tokens": 12, "n": 1,
     "parallel_tool_calls": false, "tools": [{"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}}]})",
     ""},
};

// A template that takes any turn, as those of models for agents do.
HttpOptions for_agents() {
  HttpOptions options;
  options.tool_format = chat::find_tool_format("hermes");
  return options;
}

TEST(Agents, BodiesAreAnsweredAndSayWhatIsPassedOver) {
  const RunningServer server(for_agents());
  for (const Body& body : kBodies) {
    SCOPED_TRACE(body.program);
    json asked = json::parse(body.text);
    asked.erase("instructions");  // the test's template takes no system message
    if (asked.contains("input") && asked["input"].is_array()) asked["input"].erase(0);
    json streamed_body = asked;
    asked["stream"] = false;
    asked.erase("stream_options");
    const auto whole = server.client().Post(body.path, asked.dump(), "application/json");
    ASSERT_TRUE(whole);
    EXPECT_EQ(whole->status, 200) << whole->body;
    const std::string said = whole->get_header_value("X-Sluice-Warning");
    EXPECT_NE(said.find(body.passed_over), std::string::npos) << said;
    EXPECT_EQ(said.empty(), *body.passed_over == '\0') << said;
    streamed_body["stream"] = true;
    const auto streamed = server.client().Post(body.path, streamed_body.dump(), "application/json");
    ASSERT_TRUE(streamed);
    EXPECT_EQ(streamed->status, 200) << streamed->body;
    EXPECT_FALSE(streamed->body.empty());
    EXPECT_EQ(streamed->get_header_value("X-Sluice-Warning"), said);
  }
}

TEST(Agents, AStrictServerRefusesWhatItPassesOver) {
  HttpOptions options = for_agents();
  options.is_strict = true;
  const RunningServer server(options);
  for (const Body& body : kBodies) {
    json asked = json::parse(body.text);
    asked["stream"] = true;
    asked.erase("instructions");
    if (asked.contains("input") && asked["input"].is_array()) asked["input"].erase(0);
    const auto answer = server.client().Post(body.path, asked.dump(), "application/json");
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, *body.passed_over == '\0' ? 200 : 400)
        << body.program << ": " << answer->body;
  }
}

TEST(Agents, AddressesOfAllKinds) {
  const RunningServer server(for_agents());
  for (const char* path : {"/v1/models", "/models", "/v1/models/", "/models/"})
    EXPECT_EQ(server.client().Get(path)->status, 200) << path;
  for (const char* path : {"/v1/chat/completions", "/chat/completions", "/v1/chat/completions/"})
    EXPECT_EQ(
        server.client()
            .Post(path, R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1})",
                  "application/json")
            ->status,
        200)
        << path;
}

TEST(Agents, ToolsThatAreAllowedAloneAreCalled) {
  const RunningServer server(for_agents());
  const json tools = json::parse(
      R"([{"type": "function", "function": {"name": "one"}}, {"type": "function", "function": {"name": "two"}}])");
  const json choice = json::parse(
      R"({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "two"}}]}})");
  const json answer =
      server.post("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "Lily"}}}},
                                           {"max_tokens", 60},
                                           {"parallel_tool_calls", false},
                                           {"tools", tools},
                                           {"tool_choice", choice}});
  EXPECT_EQ(answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "two");
}

}  // namespace
}  // namespace sluice::serve
