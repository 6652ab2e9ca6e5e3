set -euo pipefail
python plain.py "$@" | tee log.txt
