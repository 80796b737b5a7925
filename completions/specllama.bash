# Made by `python -m docs.made` from the command line itself: not to be edited.

__specllama_profiles() {
    local file
    for file in "${XDG_CONFIG_HOME:-$HOME/.config}"/specllama/profiles/*.toml \
        "$HOME/Library/Application Support/specllama/profiles"/*.toml; do
        [[ -e $file ]] && { file=${file##*/}; printf '%s\n' "${file%.toml}"; }
    done
}

# Fixed values; with "," the last word of a list.
__specllama_values() {
    local before= word
    [[ $1 == , && $cur == *,* ]] && before=${cur%,*},
    while IFS= read -r word; do
        COMPREPLY+=("$word")
    done < <(compgen -P "$before" -W "$2" -- "${cur##*,}")
}

# gguf: models and folders; folders; any.
__specllama_files() {
    local file
    type compopt >/dev/null 2>&1 && compopt -o filenames 2>/dev/null
    while IFS= read -r file; do
        COMPREPLY+=("$file")
    done < <({
        compgen -d -- "$cur"
        [[ $1 == gguf ]] && compgen -f -X '!*.[gG][gG][uU][fF]' -- "$cur"
        [[ $1 == any ]] && compgen -f -- "$cur"
    } | sort -u)
}

_specllama() {
    local cur=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD - 1]} command= i word
    COMPREPLY=()
    # --option=value comes as three words, in bash 3 as one
    [[ $cur == = ]] && cur=
    [[ $option == = ]] && option=${COMP_WORDS[COMP_CWORD - 2]}
    [[ $cur == --*=* ]] && { option=${cur%%=*}; cur=${cur#*=}; }
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ $word == -- ]]; then
            __specllama_files any
            return
        fi
        case "$command $word" in
            " serve" | " watch" | " plan" | " advise" | " probe" | " pick-draft" | " lint" | " memory" | " inspect" | " results" | " doctor" | " demo" | " profiles" | "profiles list" | "profiles show" | "profiles new") command="${command:+$command }$word" ;;
        esac
    done
    case "$command $option" in
        "serve -w"|"serve --workload") __specllama_values "," "agent chat code creative edit rag reasoning summarize text translate $(__specllama_profiles)"; return ;;
        "serve --draft") __specllama_files gguf; return ;;
        "serve --method") __specllama_values "," "mtp draft eagle3 dflash dspark ngram-simple ngram-map-k ngram-map-k4v ngram-mod ngram-cache none"; return ;;
        "serve --n-max") :; return ;;
        "serve --p-min") :; return ;;
        "serve --draft-layers") __specllama_values "" "auto all"; return ;;
        "serve --draft-cache") __specllama_values "" "f32 f16 bf16 q8_0 q5_1 q5_0 q4_1 q4_0 iq4_nl"; return ;;
        "serve -c"|"serve --context") :; return ;;
        "serve --parallel") :; return ;;
        "serve --host") :; return ;;
        "serve --port") :; return ;;
        "serve --api-key") :; return ;;
        "serve --vram") :; return ;;
        "serve --prefer") __specllama_values "" "speed context"; return ;;
        "serve --prompts") __specllama_files any; return ;;
        "serve --tune") __specllama_values "" "auto off full"; return ;;
        "serve --budget") :; return ;;
        "serve --llama-server") __specllama_values "" "embedded"; __specllama_files any; return ;;
        "serve --log") __specllama_files any; return ;;
        "watch --url") :; return ;;
        "watch --port") :; return ;;
        "watch --model") __specllama_files gguf; return ;;
        "watch --api-key") :; return ;;
        "watch --every") :; return ;;
        "watch --prometheus") :; return ;;
        "plan -f"|"plan --format") __specllama_values "" "shell powershell json llama-swap preset systemd launchd compose kubernetes vllm vllm-compose vllm-kubernetes sglang sglang-compose sglang-kubernetes tensorrt-llm"; return ;;
        "plan -o"|"plan --output") __specllama_files any; return ;;
        "plan --rpc") :; return ;;
        "plan --target-repo") :; return ;;
        "plan --draft-repo") :; return ;;
        "plan --nodes") :; return ;;
        "plan --gpus") :; return ;;
        "plan -w"|"plan --workload") __specllama_values "," "agent chat code creative edit rag reasoning summarize text translate $(__specllama_profiles)"; return ;;
        "plan --draft") __specllama_files gguf; return ;;
        "plan --method") __specllama_values "," "mtp draft eagle3 dflash dspark ngram-simple ngram-map-k ngram-map-k4v ngram-mod ngram-cache none"; return ;;
        "plan --n-max") :; return ;;
        "plan --p-min") :; return ;;
        "plan --draft-layers") __specllama_values "" "auto all"; return ;;
        "plan --draft-cache") __specllama_values "" "f32 f16 bf16 q8_0 q5_1 q5_0 q4_1 q4_0 iq4_nl"; return ;;
        "plan -c"|"plan --context") :; return ;;
        "plan --parallel") :; return ;;
        "plan --host") :; return ;;
        "plan --port") :; return ;;
        "plan --api-key") :; return ;;
        "plan --vram") :; return ;;
        "plan --prefer") __specllama_values "" "speed context"; return ;;
        "plan --prompts") __specllama_files any; return ;;
        "plan --llama-server") __specllama_values "" "embedded"; __specllama_files any; return ;;
        "advise -w"|"advise --workload") __specllama_values "," "agent chat code creative edit rag reasoning summarize text translate $(__specllama_profiles)"; return ;;
        "advise --draft") __specllama_files gguf; return ;;
        "advise --method") __specllama_values "," "mtp draft eagle3 dflash dspark ngram-simple ngram-map-k ngram-map-k4v ngram-mod ngram-cache none"; return ;;
        "advise -c"|"advise --context") :; return ;;
        "advise --parallel") :; return ;;
        "advise --vram") :; return ;;
        "advise --prefer") __specllama_values "" "speed context"; return ;;
        "advise --prompts") __specllama_files any; return ;;
        "advise --price") :; return ;;
        "advise --llama-server") __specllama_values "" "embedded"; __specllama_files any; return ;;
        "probe --draft") __specllama_files gguf; return ;;
        "probe --method") __specllama_values "," "mtp draft eagle3 dflash dspark ngram-simple ngram-map-k ngram-map-k4v ngram-mod ngram-cache none"; return ;;
        "probe -w"|"probe --workload") __specllama_values "," "agent chat code creative edit rag reasoning summarize text translate $(__specllama_profiles)"; return ;;
        "probe --prompts") __specllama_files any; return ;;
        "probe --replay") __specllama_files any; return ;;
        "probe --budget") :; return ;;
        "probe --n-max") :; return ;;
        "probe -c"|"probe --context") :; return ;;
        "probe --parallel") :; return ;;
        "probe --vram") :; return ;;
        "probe --report") __specllama_files any; return ;;
        "probe --csv") __specllama_files any; return ;;
        "probe --plot") __specllama_files any; return ;;
        "probe --url") :; return ;;
        "probe --baseline-url") :; return ;;
        "probe --model") :; return ;;
        "probe --api-key") :; return ;;
        "probe --llama-server") __specllama_values "" "embedded"; __specllama_files any; return ;;
        "pick-draft --dir") __specllama_files folders; return ;;
        "pick-draft -w"|"pick-draft --workload") __specllama_values "," "agent chat code creative edit rag reasoning summarize text translate $(__specllama_profiles)"; return ;;
        "pick-draft --llama-server") __specllama_values "" "embedded"; __specllama_files any; return ;;
        "pick-draft --text") __specllama_files any; return ;;
        "pick-draft --threads") :; return ;;
        "pick-draft -c"|"pick-draft --context") :; return ;;
        "pick-draft --vram") :; return ;;
        "lint --build") :; return ;;
        "lint --llama-server") __specllama_values "" "embedded"; __specllama_files any; return ;;
        "memory --draft") __specllama_files gguf; return ;;
        "memory --method") __specllama_values "," "mtp draft eagle3 dflash dspark ngram-simple ngram-map-k ngram-map-k4v ngram-mod ngram-cache none"; return ;;
        "memory --n-max") :; return ;;
        "memory -c"|"memory --context") :; return ;;
        "memory -ctk"|"memory --cache-type-k") __specllama_values "" "f32 f16 bf16 q8_0 q5_1 q5_0 q4_1 q4_0 iq4_nl"; return ;;
        "memory -ctv"|"memory --cache-type-v") __specllama_values "" "f32 f16 bf16 q8_0 q5_1 q5_0 q4_1 q4_0 iq4_nl"; return ;;
        "memory --parallel") :; return ;;
        "memory --draft-layers") __specllama_values "" "auto all"; return ;;
        "memory --draft-cache") __specllama_values "" "f32 f16 bf16 q8_0 q5_1 q5_0 q4_1 q4_0 iq4_nl"; return ;;
        "memory -w"|"memory --workload") __specllama_values "," "agent chat code creative edit rag reasoning summarize text translate $(__specllama_profiles)"; return ;;
        "memory --vram") :; return ;;
        "memory --prefer") __specllama_values "" "speed context"; return ;;
        "memory --llama-server") __specllama_values "" "embedded"; __specllama_files any; return ;;
        "doctor --llama-server") __specllama_values "" "embedded"; __specllama_files any; return ;;
        "demo --llama-server") __specllama_values "" "embedded"; __specllama_files any; return ;;
        "profiles new --from") __specllama_files any; return ;;
        "profiles new --like") __specllama_values "" "agent chat code creative edit rag reasoning summarize text translate $(__specllama_profiles)"; return ;;
    esac
    case "$command" in
        "") if [[ $cur == -* ]]; then __specllama_values "" "--version --debug --install-completion --show-completion -h --help"; else __specllama_values "" "serve watch plan advise probe pick-draft lint memory inspect results doctor demo profiles"; fi ;;
        "serve") if [[ $cur == -* ]]; then __specllama_values "" "-w --workload --draft --method --n-max --p-min --draft-layers --draft-cache -c --context --parallel --host --port --api-key --vram --prefer --prompts --tune --budget --force --llama-server --log --strict --dry-run --adaptive --idle-probes --json --json-events -h --help"; else __specllama_files gguf; fi ;;
        "watch") if [[ $cur == -* ]]; then __specllama_values "" "--url --port --model --api-key --every --once --prometheus --json -h --help"; else :; fi ;;
        "plan") if [[ $cur == -* ]]; then __specllama_values "" "-f --format -o --output --overwrite --rpc --target-repo --draft-repo --nodes --gpus -w --workload --draft --method --n-max --p-min --draft-layers --draft-cache -c --context --parallel --host --port --api-key --vram --prefer --prompts --llama-server -h --help"; else __specllama_files gguf; fi ;;
        "advise") if [[ $cur == -* ]]; then __specllama_values "" "-w --workload --draft --method -c --context --parallel --vram --prefer --prompts --price --llama-server --json -h --help"; else __specllama_files gguf; fi ;;
        "probe") if [[ $cur == -* ]]; then __specllama_values "" "--draft --method --all -w --workload --prompts --replay --budget --n-max -c --context --parallel --vram --report --csv --plot --url --baseline-url --model --api-key --llama-server --dry-run --json -h --help"; else __specllama_files gguf; fi ;;
        "pick-draft") if [[ $cur == -* ]]; then __specllama_values "" "--dir -w --workload --llama-server --hub --download --measure --text --threads -c --context --vram --all --json -h --help"; else __specllama_files gguf; fi ;;
        "lint") if [[ $cur == -* ]]; then __specllama_values "" "--fix --json --build --llama-server -h --help"; else __specllama_files any; fi ;;
        "memory") if [[ $cur == -* ]]; then __specllama_values "" "--draft --method --n-max -c --context -ctk --cache-type-k -ctv --cache-type-v --parallel --draft-layers --draft-cache -w --workload --vram --prefer --llama-server --json -h --help"; else __specllama_files gguf; fi ;;
        "inspect") if [[ $cur == -* ]]; then __specllama_values "" "--tensors --json -h --help"; else __specllama_files gguf; fi ;;
        "results") if [[ $cur == -* ]]; then __specllama_values "" "--clear -v --verbose --json -h --help"; else __specllama_files gguf; fi ;;
        "doctor") if [[ $cur == -* ]]; then __specllama_values "" "--llama-server --json -h --help"; else :; fi ;;
        "demo") if [[ $cur == -* ]]; then __specllama_values "" "--llama-server --dry-run --json -h --help"; else :; fi ;;
        "profiles") if [[ $cur == -* ]]; then __specllama_values "" "-h --help"; else __specllama_values "" "list show new"; fi ;;
        "profiles list") if [[ $cur == -* ]]; then __specllama_values "" "--json -h --help"; else :; fi ;;
        "profiles show") if [[ $cur == -* ]]; then __specllama_values "" "--prompts --json -h --help"; else __specllama_values "," "agent chat code creative edit rag reasoning summarize text translate $(__specllama_profiles)"; fi ;;
        "profiles new") if [[ $cur == -* ]]; then __specllama_values "" "--from --like --json -h --help"; else :; fi ;;
    esac
}

# bash 3 has no compopt: there every word is completed as a file's name.
if type compopt >/dev/null 2>&1; then
    complete -F _specllama specllama
else
    complete -o filenames -F _specllama specllama
fi
