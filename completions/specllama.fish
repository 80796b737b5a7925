# Made by `python -m docs.made` from the command line itself: not to be edited.

function __specllama_profiles
    set -l config ~/.config
    test -n "$XDG_CONFIG_HOME"; and set config $XDG_CONFIG_HOME
    for file in $config/specllama/profiles/*.toml ~/Library/Application\ Support/specllama/profiles/*.toml
        basename $file .toml
    end
end

# The words so far that are commands, as "profiles new"; not after --.
function __specllama_at
    set -l words (commandline -opc)
    contains -- -- $words; and return 1
    set -l command
    for word in $words[2..-1]
        contains -- (string join ' ' -- $command $word) 'serve' 'plan' 'advise' 'probe' 'pick-draft' 'lint' 'memory' 'inspect' 'results' 'doctor' 'demo' 'profiles' 'profiles list' 'profiles show' 'profiles new'; and set -a command $word
    end
    test "$command" = "$argv"
end

# Values of a list by comma.
function __specllama_list
    set -l before (commandline -ct | string replace -r '^--[^=]*=' '' | string match -r '.*,')
    for value in $argv
        echo "$before$value"
    end
end

function __specllama_gguf
    set -l word (commandline -ct | string replace -r '^--[^=]*=' '')
    __fish_complete_path $word | string match -ri '^.*(?:/|\.gguf)(?:\t.*)?$'
end

function __specllama_after_dashes
    contains -- -- (commandline -opc)
end

complete -c specllama -f
complete -c specllama -n __specllama_after_dashes -F

complete -c specllama -n '__specllama_at ' -a serve -d 'Serve MODEL with a draft that fits it, and check that it really drafts'
complete -c specllama -n '__specllama_at ' -a plan -d 'Write how MODEL is served best, in the format of what runs it; start nothing'
complete -c specllama -n '__specllama_at ' -a advise -d 'Say why MODEL is served with or without speculation, and what would change that'
complete -c specllama -n '__specllama_at ' -a probe -d 'Measure every way MODEL could speculate, and say which is fastest, or that none is'
complete -c specllama -n '__specllama_at ' -a pick-draft -d 'Find what can draft for TARGET, rank what fits, and name the rule that drops the rest'
complete -c specllama -n '__specllama_at ' -a lint -d 'Find old, invented and useless flags of speculative decoding, and say what to write'
complete -c specllama -n '__specllama_at ' -a memory -d 'Say what TARGET and its draft need on each device, whether that fits, and what to trade'
complete -c specllama -n '__specllama_at ' -a inspect -d 'Say what a GGUF file is, whether it can be served, and what can draft for it'
complete -c specllama -n '__specllama_at ' -a results -d 'Show what was measured before, which serve starts from; --clear forgets it'
complete -c specllama -n '__specllama_at ' -a doctor -d 'Look at engines, devices, folders and settings, and say what is wrong and what to do'
complete -c specllama -n '__specllama_at ' -a demo -d 'Serve the packaged tiny model and its draft, send a completion, say what happened, stop'
complete -c specllama -n '__specllama_at ' -a profiles -d 'Workload profiles: list them, show one, make one of your prompts'
complete -c specllama -n '__specllama_at ' -l version -d 'Print the version and end.'
complete -c specllama -n '__specllama_at ' -l debug -d 'Show tracebacks of errors.'
complete -c specllama -n '__specllama_at ' -l install-completion -d 'Install completion for the current shell.'
complete -c specllama -n '__specllama_at ' -l show-completion -d 'Show completion for the current shell, to copy it or customize the installation.'
complete -c specllama -n '__specllama_at ' -s h -l help -d 'Show this message and exit.'
complete -c specllama -n '__specllama_at serve' -a '(__specllama_gguf)'
complete -c specllama -n '__specllama_at serve' -s w -l workload -x -a '(__specllama_list agent chat code creative edit rag reasoning summarize text translate (__specllama_profiles))' -d 'A profile: code, chat, … (`profiles list`); a mix by comma.'
complete -c specllama -n '__specllama_at serve' -l draft -x -a '(__specllama_gguf)' -d 'File that drafts: a small model or an MTP head.'
complete -c specllama -n '__specllama_at serve' -l method -x -a '(__specllama_list mtp draft eagle3 dflash dspark ngram-simple ngram-map-k ngram-map-k4v ngram-mod ngram-cache none)' -d 'TYPE[,TYPE]: mtp, draft, eagle3, dflash, dspark, ngram-simple, ngram-map-k, ngram-map-k4v, ngram-mod, ngram-cache; none = plain decoding.'
complete -c specllama -n '__specllama_at serve' -l n-max -x -d 'Tokens per draft (K).'
complete -c specllama -n '__specllama_at serve' -l p-min -x -d 'Stop drafting below this probability.'
complete -c specllama -n '__specllama_at serve' -l draft-layers -x -a 'auto all' -d 'Draft layers on the GPU: N, auto or all.'
complete -c specllama -n '__specllama_at serve' -l draft-cache -x -a 'f32 f16 bf16 q8_0 q5_1 q5_0 q4_1 q4_0 iq4_nl' -d 'Type of the draft\'s KV cache (f16).'
complete -c specllama -n '__specllama_at serve' -s c -l context -x -d 'Context in tokens; 0 = the model\'s own.'
complete -c specllama -n '__specllama_at serve' -l parallel -x -d 'Slots. One is right for one user.'
complete -c specllama -n '__specllama_at serve' -l host -x -d 'Address to listen on.'
complete -c specllama -n '__specllama_at serve' -l port -x -d 'Port; 0 = a free one.'
complete -c specllama -n '__specllama_at serve' -l api-key -x -d 'Key of the server. Better in the variable: arguments show in `ps`.'
complete -c specllama -n '__specllama_at serve' -l vram -x -d 'SIZE[,SIZE]: take the GPUs to be that large.'
complete -c specllama -n '__specllama_at serve' -l prefer -x -a 'speed context' -d 'When memory is short: speed (shorter context) or context (no draft).'
complete -c specllama -n '__specllama_at serve' -l prompts -r -F -d 'Tune by your own questions: JSON lines (OpenAI messages too), or texts parted by lines of ---.'
complete -c specllama -n '__specllama_at serve' -l tune -x -a 'auto off full' -d 'auto: use what was measured, else measure shortly; off; full.'
complete -c specllama -n '__specllama_at serve' -l budget -x -d 'Seconds of wall time that tuning may take, loading the model included.'
complete -c specllama -n '__specllama_at serve' -l force -d 'Speculate by the fastest way even if it is slower.'
complete -c specllama -n '__specllama_at serve' -l llama-server -r -F -a 'embedded' -d 'The binary to run, or `embedded`.'
complete -c specllama -n '__specllama_at serve' -l log -r -F -d 'File for the server\'s log; its older half goes to FILE.1.'
complete -c specllama -n '__specllama_at serve' -l strict -d 'End with exit code 3 when speculation is off.'
complete -c specllama -n '__specllama_at serve' -l dry-run -d 'Print the decision and the command; start nothing.'
complete -c specllama -n '__specllama_at serve' -l json -d 'Print one JSON object when ready.'
complete -c specllama -n '__specllama_at serve' -s h -l help -d 'Show this message and exit.'
complete -c specllama -n '__specllama_at plan' -a '(__specllama_gguf)'
complete -c specllama -n '__specllama_at plan' -s f -l format -x -a 'shell powershell json llama-swap preset systemd launchd compose kubernetes vllm vllm-compose vllm-kubernetes sglang sglang-compose sglang-kubernetes tensorrt-llm' -d 'shell, powershell, json, llama-swap, preset, systemd, launchd, compose, kubernetes, vllm, vllm-compose, vllm-kubernetes, sglang, sglang-compose, sglang-kubernetes, tensorrt-llm; without it, lines to read.'
complete -c specllama -n '__specllama_at plan' -s o -l output -r -F -d 'Write it to FILE, in place of what is there.'
complete -c specllama -n '__specllama_at plan' -l rpc -x -d 'HOST:PORT[,HOST:PORT]: spread the model over the ggml-rpc-servers there too.'
complete -c specllama -n '__specllama_at plan' -l target-repo -x -d 'OWNER/NAME on Hugging Face with the same model, for vLLM, SGLang, TensorRT-LLM.'
complete -c specllama -n '__specllama_at plan' -l draft-repo -x -d 'The same for the draft; a P-EAGLE or PARD one too.'
complete -c specllama -n '__specllama_at plan' -l nodes -x -d 'Machines, for vLLM and SGLang; 1.'
complete -c specllama -n '__specllama_at plan' -l gpus -x -d 'GPUs of each machine, for the same; 1.'
complete -c specllama -n '__specllama_at plan' -s w -l workload -x -a '(__specllama_list agent chat code creative edit rag reasoning summarize text translate (__specllama_profiles))' -d 'A profile: code, chat, … (`profiles list`); a mix by comma.'
complete -c specllama -n '__specllama_at plan' -l draft -x -a '(__specllama_gguf)' -d 'File that drafts: a small model or an MTP head.'
complete -c specllama -n '__specllama_at plan' -l method -x -a '(__specllama_list mtp draft eagle3 dflash dspark ngram-simple ngram-map-k ngram-map-k4v ngram-mod ngram-cache none)' -d 'How to draft, as for serve; none = plain decoding.'
complete -c specllama -n '__specllama_at plan' -l n-max -x -d 'Tokens per draft (K).'
complete -c specllama -n '__specllama_at plan' -l p-min -x -d 'Stop drafting below this probability.'
complete -c specllama -n '__specllama_at plan' -l draft-layers -x -a 'auto all' -d 'Draft layers on the GPU: N, auto or all.'
complete -c specllama -n '__specllama_at plan' -l draft-cache -x -a 'f32 f16 bf16 q8_0 q5_1 q5_0 q4_1 q4_0 iq4_nl' -d 'Type of the draft\'s KV cache (f16).'
complete -c specllama -n '__specllama_at plan' -s c -l context -x -d 'Context in tokens; 0 = the model\'s own.'
complete -c specllama -n '__specllama_at plan' -l parallel -x -d 'Slots. One is right for one user.'
complete -c specllama -n '__specllama_at plan' -l host -x -d 'Address to listen on.'
complete -c specllama -n '__specllama_at plan' -l port -x -d 'Port.'
complete -c specllama -n '__specllama_at plan' -l api-key -x -d 'Key of the server. Better in the variable: arguments show in `ps`.'
complete -c specllama -n '__specllama_at plan' -l vram -x -d 'SIZE[,SIZE]: take the GPUs to be that large.'
complete -c specllama -n '__specllama_at plan' -l prefer -x -a 'speed context' -d 'When memory is short: speed (shorter context) or context (no draft).'
complete -c specllama -n '__specllama_at plan' -l prompts -r -F -d 'The questions it was tuned by, as for serve.'
complete -c specllama -n '__specllama_at plan' -l llama-server -r -F -a 'embedded' -d 'The binary to run, or `embedded`.'
complete -c specllama -n '__specllama_at plan' -s h -l help -d 'Show this message and exit.'
complete -c specllama -n '__specllama_at advise' -a '(__specllama_gguf)'
complete -c specllama -n '__specllama_at advise' -s w -l workload -x -a '(__specllama_list agent chat code creative edit rag reasoning summarize text translate (__specllama_profiles))' -d 'A profile: code, chat, … (`profiles list`); a mix by comma.'
complete -c specllama -n '__specllama_at advise' -l draft -x -a '(__specllama_gguf)' -d 'The file that drafts, as for serve.'
complete -c specllama -n '__specllama_at advise' -l method -x -a '(__specllama_list mtp draft eagle3 dflash dspark ngram-simple ngram-map-k ngram-map-k4v ngram-mod ngram-cache none)' -d 'How to draft, as for serve.'
complete -c specllama -n '__specllama_at advise' -s c -l context -x -d 'Context in tokens; 0 = the model\'s own.'
complete -c specllama -n '__specllama_at advise' -l parallel -x -d 'Slots.'
complete -c specllama -n '__specllama_at advise' -l vram -x -d 'SIZE[,SIZE]: take the GPUs to be that large.'
complete -c specllama -n '__specllama_at advise' -l prefer -x -a 'speed context' -d 'When memory is short: speed (shorter context) or context (no draft).'
complete -c specllama -n '__specllama_at advise' -l prompts -r -F -d 'The questions it was tuned by, as for serve.'
complete -c specllama -n '__specllama_at advise' -l price -x -d 'What the machine costs, as 2.50/h: then what a million tokens cost.'
complete -c specllama -n '__specllama_at advise' -l llama-server -r -F -a 'embedded' -d 'The binary to run, or `embedded`.'
complete -c specllama -n '__specllama_at advise' -l json -d 'Print one JSON object.'
complete -c specllama -n '__specllama_at advise' -s h -l help -d 'Show this message and exit.'
complete -c specllama -n '__specllama_at probe' -a '(__specllama_gguf)'
complete -c specllama -n '__specllama_at probe' -l draft -x -a '(__specllama_gguf)' -d 'Only this file that drafts.'
complete -c specllama -n '__specllama_at probe' -l method -x -a '(__specllama_list mtp draft eagle3 dflash dspark ngram-simple ngram-map-k ngram-map-k4v ngram-mod ngram-cache none)' -d 'Only TYPE[,TYPE], as for serve.'
complete -c specllama -n '__specllama_at probe' -l all -d 'Every way that fits, doubtful ones and combinations too.'
complete -c specllama -n '__specllama_at probe' -s w -l workload -x -a '(__specllama_list agent chat code creative edit rag reasoning summarize text translate (__specllama_profiles))' -d 'A profile (`profiles list`); a mix by comma; may repeat.'
complete -c specllama -n '__specllama_at probe' -l prompts -r -F -d 'Your own questions: JSON lines (OpenAI messages too), or texts parted by lines of ---.'
complete -c specllama -n '__specllama_at probe' -l replay -r -F -d 'Your past conversations, JSON lines with their answers (OpenAI messages): what every setting would have gained on them. Nothing is generated again.'
complete -c specllama -n '__specllama_at probe' -l budget -x -d 'Seconds of wall time for all workloads together, loading the model included.'
complete -c specllama -n '__specllama_at probe' -l n-max -x -d 'Only these K, as 1,2,4.'
complete -c specllama -n '__specllama_at probe' -s c -l context -x -d 'Context in tokens; 0 = the model\'s own.'
complete -c specllama -n '__specllama_at probe' -l parallel -x -d 'Slots; each is probed.'
complete -c specllama -n '__specllama_at probe' -l vram -x -d 'SIZE[,SIZE]: take the GPUs to be that large.'
complete -c specllama -n '__specllama_at probe' -l report -r -F -d 'Write a report: one HTML file that opens offline.'
complete -c specllama -n '__specllama_at probe' -l csv -r -F -d 'Write a row per arm.'
complete -c specllama -n '__specllama_at probe' -l url -x -d 'Attach to a running server (llama.cpp, vLLM, SGLang, …).'
complete -c specllama -n '__specllama_at probe' -l baseline-url -x -d 'With --url: the same model there without speculation.'
complete -c specllama -n '__specllama_at probe' -l model -x -d 'With --url: the model to ask, where several are served.'
complete -c specllama -n '__specllama_at probe' -l api-key -x -d 'Key of the server. Better in the variable: arguments show in `ps`.'
complete -c specllama -n '__specllama_at probe' -l llama-server -r -F -a 'embedded' -d 'The binary to run, or `embedded`.'
complete -c specllama -n '__specllama_at probe' -l dry-run -d 'Print the decision and the command; start nothing.'
complete -c specllama -n '__specllama_at probe' -l json -d 'Print one JSON object.'
complete -c specllama -n '__specllama_at probe' -s h -l help -d 'Show this message and exit.'
complete -c specllama -n '__specllama_at pick-draft' -a '(__specllama_gguf)'
complete -c specllama -n '__specllama_at pick-draft' -l dir -x -a '(__fish_complete_directories)' -d 'A folder to search, with all below it.'
complete -c specllama -n '__specllama_at pick-draft' -s w -l workload -x -a '(__specllama_list agent chat code creative edit rag reasoning summarize text translate (__specllama_profiles))' -d 'A profile: code, chat, … (`profiles list`); a mix by comma.'
complete -c specllama -n '__specllama_at pick-draft' -l llama-server -r -F -a 'embedded' -d 'The binary to run, or `embedded`.'
complete -c specllama -n '__specllama_at pick-draft' -l hub -d 'Look on the Hugging Face Hub as well (headers only).'
complete -c specllama -n '__specllama_at pick-draft' -l download -d 'With --hub: fetch the best one if it is not here.'
complete -c specllama -n '__specllama_at pick-draft' -l measure -d 'Compare plain drafts with the target, in process.'
complete -c specllama -n '__specllama_at pick-draft' -l text -r -F -d 'With --measure: compare on this text.'
complete -c specllama -n '__specllama_at pick-draft' -l threads -x -d 'Threads for --measure.'
complete -c specllama -n '__specllama_at pick-draft' -s c -l context -x -d 'Context in tokens; 0 = the model\'s own.'
complete -c specllama -n '__specllama_at pick-draft' -l vram -x -d 'SIZE[,SIZE]: take the GPUs to be that large.'
complete -c specllama -n '__specllama_at pick-draft' -l all -d 'List every rejected file.'
complete -c specllama -n '__specllama_at pick-draft' -l json -d 'Print one JSON object.'
complete -c specllama -n '__specllama_at pick-draft' -s h -l help -d 'Show this message and exit.'
complete -c specllama -n '__specllama_at lint' -r -F
complete -c specllama -n '__specllama_at lint' -l fix -d 'Print the text put right.'
complete -c specllama -n '__specllama_at lint' -l json -d 'Print one JSON object.'
complete -c specllama -n '__specllama_at lint' -l build -x -d 'The llama.cpp build it is for.'
complete -c specllama -n '__specllama_at lint' -l llama-server -r -F -a 'embedded' -d 'The binary to run, or `embedded`.'
complete -c specllama -n '__specllama_at lint' -s h -l help -d 'Show this message and exit.'
complete -c specllama -n '__specllama_at memory' -a '(__specllama_gguf)'
complete -c specllama -n '__specllama_at memory' -l draft -x -a '(__specllama_gguf)' -d 'The file that drafts.'
complete -c specllama -n '__specllama_at memory' -l method -x -a '(__specllama_list mtp draft eagle3 dflash dspark ngram-simple ngram-map-k ngram-map-k4v ngram-mod ngram-cache none)' -d 'How to draft, as for serve; none = plain decoding.'
complete -c specllama -n '__specllama_at memory' -l n-max -x -d 'Tokens per draft (K).'
complete -c specllama -n '__specllama_at memory' -s c -l context -x -d 'Context in tokens; 0 = the model\'s own.'
complete -c specllama -n '__specllama_at memory' -o ctk -l cache-type-k -x -a 'f32 f16 bf16 q8_0 q5_1 q5_0 q4_1 q4_0 iq4_nl' -d 'K cache type (f16).'
complete -c specllama -n '__specllama_at memory' -o ctv -l cache-type-v -x -a 'f32 f16 bf16 q8_0 q5_1 q5_0 q4_1 q4_0 iq4_nl' -d 'V cache type (f16).'
complete -c specllama -n '__specllama_at memory' -l parallel -x -d 'Slots.'
complete -c specllama -n '__specllama_at memory' -l draft-layers -x -a 'auto all' -d 'Draft layers on the GPU: N, auto or all.'
complete -c specllama -n '__specllama_at memory' -l draft-cache -x -a 'f32 f16 bf16 q8_0 q5_1 q5_0 q4_1 q4_0 iq4_nl' -d 'Type of the draft\'s KV cache (f16).'
complete -c specllama -n '__specllama_at memory' -s w -l workload -x -a '(__specllama_list agent chat code creative edit rag reasoning summarize text translate (__specllama_profiles))' -d 'A profile: code, chat, … (`profiles list`); a mix by comma.'
complete -c specllama -n '__specllama_at memory' -l vram -x -d 'SIZE[,SIZE]: take the GPUs to be that large.'
complete -c specllama -n '__specllama_at memory' -l prefer -x -a 'speed context' -d 'When memory is short: speed (shorter context) or context (no draft).'
complete -c specllama -n '__specllama_at memory' -l llama-server -r -F -a 'embedded' -d 'The binary to run, or `embedded`.'
complete -c specllama -n '__specllama_at memory' -l json -d 'Print one JSON object.'
complete -c specllama -n '__specllama_at memory' -s h -l help -d 'Show this message and exit.'
complete -c specllama -n '__specllama_at inspect' -a '(__specllama_gguf)'
complete -c specllama -n '__specllama_at inspect' -l tensors -d 'List every tensor.'
complete -c specllama -n '__specllama_at inspect' -l json -d 'Print one JSON object.'
complete -c specllama -n '__specllama_at inspect' -s h -l help -d 'Show this message and exit.'
complete -c specllama -n '__specllama_at results' -a '(__specllama_gguf)'
complete -c specllama -n '__specllama_at results' -l clear -d 'Forget them.'
complete -c specllama -n '__specllama_at results' -l json -d 'Print one JSON object.'
complete -c specllama -n '__specllama_at results' -s h -l help -d 'Show this message and exit.'
complete -c specllama -n '__specllama_at doctor' -l llama-server -r -F -a 'embedded' -d 'The binary to run, or `embedded`.'
complete -c specllama -n '__specllama_at doctor' -l json -d 'Print one JSON object.'
complete -c specllama -n '__specllama_at doctor' -s h -l help -d 'Show this message and exit.'
complete -c specllama -n '__specllama_at demo' -l llama-server -r -F -a 'embedded' -d 'The binary to run, or `embedded`.'
complete -c specllama -n '__specllama_at demo' -l dry-run -d 'Print the decision and the command; start nothing.'
complete -c specllama -n '__specllama_at demo' -l json -d 'Print one JSON object.'
complete -c specllama -n '__specllama_at demo' -s h -l help -d 'Show this message and exit.'
complete -c specllama -n '__specllama_at profiles' -a list -d 'List the profiles that --workload takes, your own too'
complete -c specllama -n '__specllama_at profiles' -a show -d 'Show one profile: its settings, its prompts, and the file to copy'
complete -c specllama -n '__specllama_at profiles' -a new -d 'Make a workload of your own prompts: two files to edit, in your config folder'
complete -c specllama -n '__specllama_at profiles' -s h -l help -d 'Show this message and exit.'
complete -c specllama -n '__specllama_at profiles list' -l json -d 'Print one JSON object.'
complete -c specllama -n '__specllama_at profiles list' -s h -l help -d 'Show this message and exit.'
complete -c specllama -n '__specllama_at profiles show' -a '(__specllama_list agent chat code creative edit rag reasoning summarize text translate (__specllama_profiles))'
complete -c specllama -n '__specllama_at profiles show' -l prompts -d 'Print its prompts too.'
complete -c specllama -n '__specllama_at profiles show' -l json -d 'Print one JSON object.'
complete -c specllama -n '__specllama_at profiles show' -s h -l help -d 'Show this message and exit.'
complete -c specllama -n '__specllama_at profiles new' -l from -r -F -d 'Your prompts: JSON lines (OpenAI messages too), texts parted by lines of ---, or a folder of them.'
complete -c specllama -n '__specllama_at profiles new' -l like -x -a 'agent chat code creative edit rag reasoning summarize text translate (__specllama_profiles)' -d 'The profile whose settings it gets (without --from, prompts too).'
complete -c specllama -n '__specllama_at profiles new' -l json -d 'Print one JSON object.'
complete -c specllama -n '__specllama_at profiles new' -s h -l help -d 'Show this message and exit.'
