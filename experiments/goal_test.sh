#!/usr/bin/env bash
# Trains with the goals gold and combat under three rewards and compares gold and monsters killed per episode.
#   experiments/goal_test.sh                                        # about 50 minutes on two cores
#   CONFIG=experiments/goal_test_gpu.yaml SEEDS="1 2 3" experiments/goal_test.sh     # on a GPU node
# SECONDS_A_RUN=60 trains each run for that many seconds instead of what CONFIG says (stop.seconds); OPTIONS="llm.backend=..."
# are further options of `oni-ray train`.
# What is there already is not run again. Results: runs/goal_test/ with compare.png and compare.json; the final figures are
# printed at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
CONFIG="${CONFIG:-experiments/goal_test.yaml}"
REWARDS="${REWARDS:-classification ranking bow}"
GOALS="${GOALS:-gold combat}"
SEEDS="${SEEDS:-1}"
EPISODES="${EPISODES:-64}"
FOLDER="${FOLDER:-runs/goal_test}"

for seed in $SEEDS; do
    for reward in $REWARDS; do
        for goal in $GOALS; do
            run="$FOLDER/$reward-$goal-$seed"
            if [ -f "$run/evaluation.json" ]; then continue; fi
            if [ ! -f "$run/summary.json" ]; then
                rm -rf "$run"
                # shellcheck disable=SC2086  # several words are wanted
                oni-ray train "$CONFIG" reward.type="$reward" annotation.goal="$goal" run.seed="$seed" \
                    run.folder="$FOLDER" run.name="$reward-$goal-$seed" \
                    ${SECONDS_A_RUN:+stop.seconds="$SECONDS_A_RUN"} ${OPTIONS:-}
            fi
            oni-ray evaluate "$run" --episodes "$EPISODES" --seeds "0:$EPISODES" --json "$run/evaluation.json"
        done
    done
done
oni-ray compare "$FOLDER"/*-*-[0-9]* --figure gold_mean,monsters_killed_mean \
    --plot "$FOLDER/compare.png" --json "$FOLDER/compare.json"
