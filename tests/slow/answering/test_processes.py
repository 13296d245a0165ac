"""What answers leave behind when their process ends."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
from pathlib import Path

from llama_index_contextual.answering.query_engine import AnswerCache, WrittenAnswer
from tests.support.source import ROOT


def test_a_cached_answer_survives_its_process_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite"
    code = f"""if 1:
        import os, signal
        os.umask(0)
        from llama_index_contextual.answering.query_engine import AnswerCache, WrittenAnswer
        AnswerCache({str(path)!r}).put("a", WrittenAnswer("Yes [Source 1].", "Yes [Source 1]."), version=None)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert AnswerCache(path).get("a") == WrittenAnswer("Yes [Source 1].", "Yes [Source 1].")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_thread_of_a_stalled_model_does_not_keep_the_process_alive() -> None:
    code = (
        "from tests.unit.answering.test_synchronous_models import ModelError, StallingLLM, engine_of\n"
        "try:\n    engine_of(StallingLLM()).query('Why?')\n"
        "except ModelError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert "did not begin to answer within 0.2 seconds" in done.stdout
