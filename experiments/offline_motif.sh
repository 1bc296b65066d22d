#!/usr/bin/env bash
# The offline baseline (Motif) end to end: play, ask about pairs, fit the reward, train with it frozen.
#   experiments/offline_motif.sh                                   # under ten minutes on two cores
#   POLICY=runs/RUN EPISODES=2000 PAIRS=100000 LLM=serve_configs/llama31_8b_gpu.yaml experiments/offline_motif.sh
# Results: runs/offline_motif/data (captions, labels), .../reward (with calibration.png), .../train. A stage that is done
# is not done again.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
POLICY="${POLICY:-random}"
EPISODES="${EPISODES:-100}"
PAIRS="${PAIRS:-4000}"
SECONDS_OF_TRAINING="${SECONDS_OF_TRAINING:-180}"
LLM="${LLM:-serve_configs/smollm2_cpu.yaml}"
FOLDER="${FOLDER:-runs/offline_motif}"

[ -f "$FOLDER/data/captions.parquet" ] ||
    oni-ray collect --out "$FOLDER/data" --task score --policy "$POLICY" --episodes "$EPISODES"
oni-ray annotate "$FOLDER/data" --llm "$LLM" --pairs "$PAIRS"
[ -f "$FOLDER/reward/reward.json" ] || oni-ray fit-reward "$FOLDER/data" --out "$FOLDER/reward"
[ -f "$FOLDER/train/summary.json" ] ||
    oni-ray train experiments/nethack/score-motif.yaml reward.path="$FOLDER/reward" stop.seconds="$SECONDS_OF_TRAINING" \
        algorithm.lr=3e-4 resources.learner_process=false resources.learner_gpus=0 resources.num_cpus=8 resources.object_store_mb=512 rollout.runners=2 rollout.envs_per_runner=16 algorithm.batch_size=1024 \
        run.folder="$FOLDER" run.name=train
