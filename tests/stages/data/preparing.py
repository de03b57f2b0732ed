"""`python -m tests.stages.data.preparing <folder> <cache>` prepares images slowly, and prints a line for each one."""

import sys
import time
from pathlib import Path
from typing import Any

from stages.data import loading
from stages.load.folders import image_folder
from tests.stages.images import settings

encoded = loading._encoded


def slow(*given: Any) -> Any:
    """Print that an image is decoded, in one call, as threads must not mix their lines, and wait."""
    sys.stdout.write("decodes\n")
    sys.stdout.flush()
    time.sleep(0.05)
    return encoded(*given)


if __name__ == "__main__":
    loading._encoded = slow  # type: ignore[assignment]
    print(image_folder(settings(Path(sys.argv[1])), cache=Path(sys.argv[2])).fingerprint)
