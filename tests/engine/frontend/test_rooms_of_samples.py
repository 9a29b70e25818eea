"""The real router's bodies, read by the engine: every sample of every prompt gets a room of its own on both sides."""

from __future__ import annotations

import json

from pdctl.engine.config.instance_args import ServerArgs
from pdctl.engine.frontend.intake import pairings
from pdctl.engine.frontend.request_bodies import ChatBody, CompletionBody, GenerateBody, RoutedBody
from pdctl.router.body import GenerationBody
from tests.cases import for_each

MODELS: dict[str, type[RoutedBody]] = {
    "/generate": GenerateBody,
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
}
MESSAGES = [{"role": "user", "content": "hi"}]


@for_each("samples", [1, 2, 5])
@for_each(
    ("path", "prompt", "prompts"),
    [
        ("/generate", {"text": "hi"}, 1),
        ("/generate", {"text": ["hi"]}, 1),
        ("/generate", {"text": ["a", "b", "c"]}, 3),
        ("/generate", {"input_ids": [5, 6]}, 1),
        ("/generate", {"input_ids": [[5, 6], [7]]}, 2),
        ("/v1/completions", {"prompt": "hi"}, 1),
        ("/v1/completions", {"prompt": ["a", "b"]}, 2),
        ("/v1/completions", {"prompt": [[5], [6], [7]]}, 3),
        ("/v1/chat/completions", {"messages": MESSAGES}, 1),
    ],
)
def test_no_two_samples_share_a_room(path: str, prompt: dict[str, object], prompts: int, samples: int) -> None:
    wish = {"sampling_params": {"n": samples}} if path == "/generate" else {"n": samples}
    raw = json.dumps({**prompt, **(wish if samples > 1 else {})}).encode()
    routed = GenerationBody(path.encode(), raw)
    rooms = routed.rooms()
    sent = routed.addressed("10.0.0.1", 8998, rooms)
    rids = [str(index) for index in range(prompts * samples)]
    seen = []
    for mode in ("prefill", "decode"):
        body = MODELS[path].model_validate_json(sent)
        pairs = pairings(body, ServerArgs("/nowhere", disaggregation_mode=mode), rids, samples)
        assert {(pair.host, pair.port) for pair in pairs} == {("10.0.0.1", 8998)}
        seen.append([pair.room for pair in pairs])
    assert seen[0] == seen[1]
    assert len(set(seen[0])) == len(rids)
    assert set(rooms) <= set(seen[0])  # what the router wrote down can be found in the engines' logs
