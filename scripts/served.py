"""`sluice serve` for the length of a with statement; what scripts of this folder share."""
import contextlib
import os
import re
import subprocess
import tempfile
import time

SLUICE = os.environ.get("SLUICE", "build/release/bin/sluice")


@contextlib.contextmanager
def served(model, *flags):
    """Yields the server's address, "http://127.0.0.1:PORT"; what it says goes to a file that is shown if it ends early."""
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen([SLUICE, "serve", model, "--port", "0", *flags], stderr=log, stdout=log)
        try:
            url = None
            while url is None:
                time.sleep(0.1)
                log.seek(0)
                text = log.read()
                if server.poll() is not None:
                    raise SystemExit(f"sluice serve ended at once: {text}")
                found = re.search(r"at (http://[^/ ]+)/v1", text)
                url = found and found[1]
            yield url
        finally:
            server.terminate()
            server.wait(timeout=60)
