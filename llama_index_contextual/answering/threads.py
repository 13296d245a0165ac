"""Calls of synchronous LLMs in threads, so that timeouts apply to them too.

LlamaIndex runs the calls of a `CustomLLM`, such as LlamaCPP and HuggingFaceLLM, in the event loop, which then stands
still until the model sends its next piece.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncGenerator, Callable, Iterable
from weakref import WeakValueDictionary

from llama_index.core.base.llms.types import ChatResponse
from llama_index.core.llms import LLM, CustomLLM

from llama_index_contextual._utils.forks import new_lock
from llama_index_contextual.errors import ModelError

_PAUSE = 0.02
"""Seconds between two looks at whether a model is free."""


class ThreadedCalls:
    """Calls of one synchronous LLM, one at a time, each in a thread of its own.

    A thread cannot be stopped from outside. When a call is given up, its thread ends at the next piece of the model, or
    with the process, which does not wait for it. Until then the model is busy, because two calls at once can crash a
    model such as llama.cpp.
    """

    def __init__(self) -> None:
        self._busy = new_lock()
        self._is_given_up = False

    async def wait(self, name: str, patience: float) -> None:
        """Wait until no other call runs; `start` has to follow.

        Args:
            name: Name of the model.
            patience: Seconds to wait for a call that was given up.

        Raises:
            ModelError: A call that was given up is still running.
        """
        waited = 0.0
        while not self._busy.acquire(blocking=False):
            if waited >= patience:
                raise ModelError(
                    f"{name!r} is still busy with an earlier question that was given up: try again later, or restart"
                    f" the program.",
                    setting="llm",
                )
            await asyncio.sleep(_PAUSE)
            waited = waited + _PAUSE if self._is_given_up else 0.0
        self._is_given_up = False

    def start(self, call: Callable[[], Iterable[ChatResponse]]) -> AsyncGenerator[ChatResponse, None]:
        """Start a call in a thread, after `wait`, and return its pieces."""
        loop, stopped = asyncio.get_running_loop(), threading.Event()
        pieces: asyncio.Queue[ChatResponse | Exception | None] = asyncio.Queue()

        def send(piece: ChatResponse | Exception | None) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop has been closed
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        def run() -> None:
            try:
                for piece in call():
                    send(piece)
                    if stopped.is_set():
                        break
                send(None)
            except Exception as error:  # noqa: BLE001 - any LLM class may raise anything; it is raised to the reader
                send(error)
            finally:
                self._busy.release()

        async def received() -> AsyncGenerator[ChatResponse, None]:
            try:
                while (piece := await pieces.get()) is not None:
                    if isinstance(piece, Exception):
                        raise piece
                    yield piece
            finally:
                stopped.set()
                self._is_given_up = self._busy.locked()

        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(run,), name="llm", daemon=True).start()
        return received()


_of_models: WeakValueDictionary[int, ThreadedCalls] = WeakValueDictionary()


def threaded_calls(llm: LLM) -> ThreadedCalls | None:
    """Return the calls of a synchronous LLM, the same for all its users; None for an asynchronous one."""
    # The method of CustomLLM; attributes of the classes are not compared, as instrumentation wraps them at each access.
    if next((kind for kind in type(llm).__mro__ if "astream_chat" in vars(kind)), None) is not CustomLLM:
        return None
    return _of_models.setdefault(id(llm), ThreadedCalls())
