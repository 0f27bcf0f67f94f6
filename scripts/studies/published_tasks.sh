#!/usr/bin/env bash
# Trains the published tasks of docs/results.md from scratch, and scores them with intervals. It fetches nothing.
#
#     bash scripts/studies/published_tasks.sh sorbian DATA RUNS STEP...
#     bash scripts/studies/published_tasks.sh americas DATA RUNS LANGUAGE...
#
# sorbian: WMT20 Upper Sorbian-German. DATA is a clone of github.com/mariondimarco/WMT22_UnsupVeryLowResMT_Data, in which
# devtest.tar.gz is unpacked. The steps, in this order; each has one thread, and two at once use two cores:
#   30m-hsb-de, 30m-de-hsb, 2h-hsb-de, 2h-de-hsb   60,000 pairs, with a time limit
#   whole-hsb-de-SEED, whole-de-hsb-SEED           60,000 pairs, without one
#   all-hsb-de, all-de-hsb                         147,521 pairs
#   both                                           147,521 pairs, both directions in one model
#   bt-hsb-de, bt-de-hsb                           and text of the target language, translated by the model "all" of the
#                                                  other direction
#   distil-hsb-de, distil-de-hsb                   a student of the models "all" and "bt"
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
    mtx train own-text data.dir="$data" run_dir="$runs/$name" "$@"
    score "$runs/$name"
}

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
    local step=$1 src tgt
    case $step in
    *de-hsb*) src=de tgt=hsb ;;
    *) src=hsb tgt=de ;;
    esac
    local pair=(data.src=$src data.tgt=$tgt "${sets[@]}")
    case $step in
    30m-* | 2h-*) train "$step" "${pair[@]}" data.train=$small training.time_limit="${step%%-*}" ;;
    whole-*) train "$step" "${pair[@]}" data.train=$small seed="${step##*-}" ;;
    all-*) train "$step" "${pair[@]}" data.train=$large ;;
    both) train both data.directions=hsb-de,de-hsb "${sets[@]}" data.train=$large ;;
    bt-*)
        monolingual $tgt >"$runs/mono.$tgt"
        mtx back-translate "$runs/all-$tgt-$src" "$runs/mono.$tgt" -o "$(realpath "$runs")/bt.$src-$tgt.tsv"
        train "$step" "${pair[@]}" data.train="[train.hsb-de, train2021.hsb-de, {name: $(realpath "$runs")/bt.$src-$tgt.tsv, tag: BT}]"
        ;;
    distil-*)
        mtx distil "$runs/all-$src-$tgt+$runs/bt-$src-$tgt" run_dir="$runs/$step"
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
