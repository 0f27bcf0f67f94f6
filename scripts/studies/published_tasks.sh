#!/usr/bin/env bash
# Trains the published tasks of docs/results.md from scratch, and scores them with intervals. It fetches nothing.
#
#     bash scripts/studies/published_tasks.sh sorbian DATA RUNS STEP...
#     bash scripts/studies/published_tasks.sh americas DATA RUNS LANGUAGE...
#
# sorbian: WMT20 Upper Sorbian-German. DATA is a clone of github.com/mariondimarco/WMT22_UnsupVeryLowResMT_Data, in which
# devtest.tar.gz is unpacked. A step is [LIMIT-]WHAT, such as 2h-all-hsb-de, where LIMIT is a training.time_limit. Each
# has one thread, and two at once use two cores. WHAT, where hsb-de may be de-hsb:
#   small-hsb-de[-SEED]   60,000 pairs
#   all-hsb-de            147,521 pairs
#   both                  60,000 pairs, both directions in one model
#   bt-hsb-de             60,000 pairs, and text of the target language that the model LIMIT-small-de-hsb translates
#   distil-hsb-de         a student of the model 8h-small-hsb-de
# americas: AmericasNLP 2021 from Spanish, 30 minutes each. DATA is a clone of github.com/AmericasNLP/americasnlp2021;
# the languages are hch, gn, aym and bzd. The validation text is held out of the training text, dev is the test set.
set -euo pipefail
export OMP_NUM_THREADS=1
task=$1 data=$(realpath "$2") runs=$3
shift 3
mkdir -p "$runs"

score() {
    mtx evaluate "$1" -m bleu -m chrf -m chrf++ --without-leaks --json >"$1.scores.json"
}

train() { # NAME SETTING...
    local name=$1
    shift
    mtx train "${recipe:-own-text}" data.dir="$data" run_dir="$runs/$name" "$@"
    score "$runs/$name"
}

recipes=$(dirname "$0")/../../configs
sets=(data.valid=devel.hsb-de data.test=devel_test.hsb-de)
small=train.hsb-de
large=train.hsb-de,train2021.hsb-de

# Text of one language without the sentences of the sets: 739 of the 2,000 test sentences are among its Upper Sorbian
monolingual() { # LANGUAGE
    case $1 in
    hsb) zcat "$data/train_dsb_hsb_62564.hsb.gz" ;;
    de) zcat "$data/40194_train_dsb_de.de.gz" ;;
    esac | sort -u | sed 's/[[:space:]]*$//' |
        grep -vxFf <(sed 's/[[:space:]]*$//' "$data"/devel.hsb-de."$1" "$data"/devel_test.hsb-de."$1")
}

sorbian() { # STEP
    local step=$1 limit= src tgt
    local what=$step settings=()
    if [[ $step == [0-9]* ]]; then
        limit=${step%%-*}- what=${step#*-}
        settings=(training.time_limit="${limit%-}")
    fi
    case $what in
    *de-hsb*) src=de tgt=hsb ;;
    *) src=hsb tgt=de ;;
    esac
    local pair=(data.src=$src data.tgt=$tgt "${sets[@]}" "${settings[@]}")
    case $what in
    small-*-*-*) train "$step" "${pair[@]}" data.train=$small seed="${what##*-}" ;;
    small-*) train "$step" "${pair[@]}" data.train=$small ;;
    all-*) train "$step" "${pair[@]}" data.train=$large ;;
    both) train "$step" data.directions=hsb-de,de-hsb "${sets[@]}" "${settings[@]}" data.train=$small ;;
    bt-*)
        local synthetic
        synthetic=$(realpath "$runs")/$limit$what.tsv
        monolingual $tgt >"$runs/mono.$tgt"
        mtx back-translate "$runs/${limit}small-$tgt-$src" "$runs/mono.$tgt" -o "$synthetic"
        sed "s|own.tsv|$small|; s|bt.tsv|$synthetic|" "$recipes/back-translation.yaml" >"$runs/$step.yaml"
        recipe=$runs/$step.yaml train "$step" "${pair[@]}"
        ;;
    distil-*)
        mtx distil "$runs/8h-small-$src-$tgt" run_dir="$runs/$step" "${settings[@]}"
        score "$runs/$step"
        ;;
    *)
        echo "no such step: $step" >&2
        exit 2
        ;;
    esac
}

americas() { # LANGUAGE
    local folder
    case $1 in
    hch) folder=wixarika-spanish ;;
    gn) folder=guarani-spanish ;;
    aym) folder=aymara-spanish ;;
    bzd) folder=bribri-spanish ;;
    *)
        echo "no such language: $1" >&2
        exit 2
        ;;
    esac
    data=$data/data/$folder train "es-$1" data.train=train data.test=dev data.src=es data.tgt="$1" training.time_limit=30m
}

for each in "$@"; do
    "$task" "$each"
done
