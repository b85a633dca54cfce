"""The hostile tests are one package: its scripts run as processes of their own, from the folder of the repository."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))
