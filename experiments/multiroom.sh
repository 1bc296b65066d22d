#!/usr/bin/env bash
# MiniHack-MultiRoom-N4 with every reward, three seeds each, and one plot of the success rate against steps and minutes.
#   experiments/multiroom.sh            # about 100 minutes on two cores; what is there already is not run again
#   SECONDS_A_RUN=60 SEEDS="1" experiments/multiroom.sh     # a quick look
# The language model is served once for all runs. Results: runs/multiroom/, docs/multiroom.png, docs/multiroom.json.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
REWARDS="${REWARDS:-none retrieval classification ranking rnd count count-episodic}"
SEEDS="${SEEDS:-1 2 3}"
SECONDS_A_RUN="${SECONDS_A_RUN:-240}"
FOLDER="${FOLDER:-runs/multiroom}"
JUDGE=http://127.0.0.1:8000/v1

# What a name in REWARDS stands for. The error of rnd is a reward at every step, so it gets a smaller coefficient.
options() {
    case $1 in
        rnd) echo "reward.type=rnd reward.intrinsic_coefficient=0.03" ;;
        count-episodic) echo "reward.type=count reward.count_scope=episodic" ;;
        *) echo "reward.type=$1" ;;
    esac
}

mkdir -p "$FOLDER"
oni-ray serve serve_configs/smollm2_cpu.yaml >"$FOLDER/judge.log" 2>&1 &
judge=$!
trap 'kill -TERM $judge 2>/dev/null; wait $judge 2>/dev/null || true' EXIT
for _ in $(seq 120); do
    curl -sf "$JUDGE/models" >/dev/null && break
    kill -0 $judge || { cat "$FOLDER/judge.log"; exit 1; }
    sleep 2
done

for seed in $SEEDS; do
    for reward in $REWARDS; do
        if [ -f "$FOLDER/$reward-$seed/summary.json" ]; then continue; fi
        rm -rf "${FOLDER:?}/$reward-$seed"
        # shellcheck disable=SC2046  # several words are wanted
        oni-ray train experiments/multiroom.yaml $(options "$reward") run.seed="$seed" \
            run.folder="$FOLDER" run.name="$reward-$seed" stop.seconds="$SECONDS_A_RUN" \
            llm.backend=openai llm.base_url="$JUDGE" llm.model=smollm2-135m-instruct
    done
done
oni-ray compare "$FOLDER"/*-[0-9]* --figure success_rate --by env_steps,minutes \
    --plot docs/multiroom.png --json docs/multiroom.json
