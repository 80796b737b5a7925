# Made by `python -m docs.made` from the command line itself: not to be edited.

Register-ArgumentCompleter -Native -CommandName specllama -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)

    # Of each command: its subcommands, options without a value, and what takes one: the values,
    # whether several by comma, which files, and whether the user's profiles belong to them.
    $commands = @{
        '' = @{
            commands = @('serve', 'watch', 'plan', 'advise', 'probe', 'pick-draft', 'lint', 'memory', 'inspect', 'results', 'doctor', 'demo', 'profiles')
            flags = @('--version', '--debug', '--install-completion', '--show-completion', '-h', '--help')
            options = @{  }
            arguments = @()
        }
        'serve' = @{
            commands = @()
            flags = @('--force', '--strict', '--dry-run', '--adaptive', '--idle-probes', '--json', '--json-events', '-h', '--help')
            options = @{ '-w' = @{ values = @('agent', 'chat', 'code', 'creative', 'edit', 'rag', 'reasoning', 'summarize', 'text', 'translate'); files = ''; list = $true; profiles = $true }; '--workload' = @{ values = @('agent', 'chat', 'code', 'creative', 'edit', 'rag', 'reasoning', 'summarize', 'text', 'translate'); files = ''; list = $true; profiles = $true }; '--draft' = @{ values = @(); files = 'gguf' }; '--method' = @{ values = @('mtp', 'draft', 'eagle3', 'dflash', 'dspark', 'ngram-simple', 'ngram-map-k', 'ngram-map-k4v', 'ngram-mod', 'ngram-cache', 'none'); files = ''; list = $true }; '--n-max' = @{ values = @(); files = '' }; '--p-min' = @{ values = @(); files = '' }; '--draft-layers' = @{ values = @('auto', 'all'); files = '' }; '--draft-cache' = @{ values = @('f32', 'f16', 'bf16', 'q8_0', 'q5_1', 'q5_0', 'q4_1', 'q4_0', 'iq4_nl'); files = '' }; '-c' = @{ values = @(); files = '' }; '--context' = @{ values = @(); files = '' }; '--parallel' = @{ values = @(); files = '' }; '--host' = @{ values = @(); files = '' }; '--port' = @{ values = @(); files = '' }; '--api-key' = @{ values = @(); files = '' }; '--vram' = @{ values = @(); files = '' }; '--prefer' = @{ values = @('speed', 'context'); files = '' }; '--prompts' = @{ values = @(); files = 'any' }; '--tune' = @{ values = @('auto', 'off', 'full'); files = '' }; '--budget' = @{ values = @(); files = '' }; '--llama-server' = @{ values = @('embedded'); files = 'any' }; '--log' = @{ values = @(); files = 'any' } }
            arguments = @(@{ values = @(); files = 'gguf' })
        }
        'watch' = @{
            commands = @()
            flags = @('--once', '--json', '-h', '--help')
            options = @{ '--url' = @{ values = @(); files = '' }; '--port' = @{ values = @(); files = '' }; '--model' = @{ values = @(); files = 'gguf' }; '--api-key' = @{ values = @(); files = '' }; '--every' = @{ values = @(); files = '' }; '--prometheus' = @{ values = @(); files = '' } }
            arguments = @()
        }
        'plan' = @{
            commands = @()
            flags = @('--overwrite', '-h', '--help')
            options = @{ '-f' = @{ values = @('shell', 'powershell', 'json', 'llama-swap', 'preset', 'systemd', 'launchd', 'compose', 'kubernetes', 'vllm', 'vllm-compose', 'vllm-kubernetes', 'sglang', 'sglang-compose', 'sglang-kubernetes', 'tensorrt-llm'); files = '' }; '--format' = @{ values = @('shell', 'powershell', 'json', 'llama-swap', 'preset', 'systemd', 'launchd', 'compose', 'kubernetes', 'vllm', 'vllm-compose', 'vllm-kubernetes', 'sglang', 'sglang-compose', 'sglang-kubernetes', 'tensorrt-llm'); files = '' }; '-o' = @{ values = @(); files = 'any' }; '--output' = @{ values = @(); files = 'any' }; '--rpc' = @{ values = @(); files = '' }; '--target-repo' = @{ values = @(); files = '' }; '--draft-repo' = @{ values = @(); files = '' }; '--nodes' = @{ values = @(); files = '' }; '--gpus' = @{ values = @(); files = '' }; '-w' = @{ values = @('agent', 'chat', 'code', 'creative', 'edit', 'rag', 'reasoning', 'summarize', 'text', 'translate'); files = ''; list = $true; profiles = $true }; '--workload' = @{ values = @('agent', 'chat', 'code', 'creative', 'edit', 'rag', 'reasoning', 'summarize', 'text', 'translate'); files = ''; list = $true; profiles = $true }; '--draft' = @{ values = @(); files = 'gguf' }; '--method' = @{ values = @('mtp', 'draft', 'eagle3', 'dflash', 'dspark', 'ngram-simple', 'ngram-map-k', 'ngram-map-k4v', 'ngram-mod', 'ngram-cache', 'none'); files = ''; list = $true }; '--n-max' = @{ values = @(); files = '' }; '--p-min' = @{ values = @(); files = '' }; '--draft-layers' = @{ values = @('auto', 'all'); files = '' }; '--draft-cache' = @{ values = @('f32', 'f16', 'bf16', 'q8_0', 'q5_1', 'q5_0', 'q4_1', 'q4_0', 'iq4_nl'); files = '' }; '-c' = @{ values = @(); files = '' }; '--context' = @{ values = @(); files = '' }; '--parallel' = @{ values = @(); files = '' }; '--host' = @{ values = @(); files = '' }; '--port' = @{ values = @(); files = '' }; '--api-key' = @{ values = @(); files = '' }; '--vram' = @{ values = @(); files = '' }; '--prefer' = @{ values = @('speed', 'context'); files = '' }; '--prompts' = @{ values = @(); files = 'any' }; '--llama-server' = @{ values = @('embedded'); files = 'any' } }
            arguments = @(@{ values = @(); files = 'gguf' })
        }
        'advise' = @{
            commands = @()
            flags = @('--json', '-h', '--help')
            options = @{ '-w' = @{ values = @('agent', 'chat', 'code', 'creative', 'edit', 'rag', 'reasoning', 'summarize', 'text', 'translate'); files = ''; list = $true; profiles = $true }; '--workload' = @{ values = @('agent', 'chat', 'code', 'creative', 'edit', 'rag', 'reasoning', 'summarize', 'text', 'translate'); files = ''; list = $true; profiles = $true }; '--draft' = @{ values = @(); files = 'gguf' }; '--method' = @{ values = @('mtp', 'draft', 'eagle3', 'dflash', 'dspark', 'ngram-simple', 'ngram-map-k', 'ngram-map-k4v', 'ngram-mod', 'ngram-cache', 'none'); files = ''; list = $true }; '-c' = @{ values = @(); files = '' }; '--context' = @{ values = @(); files = '' }; '--parallel' = @{ values = @(); files = '' }; '--vram' = @{ values = @(); files = '' }; '--prefer' = @{ values = @('speed', 'context'); files = '' }; '--prompts' = @{ values = @(); files = 'any' }; '--price' = @{ values = @(); files = '' }; '--llama-server' = @{ values = @('embedded'); files = 'any' } }
            arguments = @(@{ values = @(); files = 'gguf' })
        }
        'probe' = @{
            commands = @()
            flags = @('--all', '--dry-run', '--json', '-h', '--help')
            options = @{ '--draft' = @{ values = @(); files = 'gguf' }; '--method' = @{ values = @('mtp', 'draft', 'eagle3', 'dflash', 'dspark', 'ngram-simple', 'ngram-map-k', 'ngram-map-k4v', 'ngram-mod', 'ngram-cache', 'none'); files = ''; list = $true }; '-w' = @{ values = @('agent', 'chat', 'code', 'creative', 'edit', 'rag', 'reasoning', 'summarize', 'text', 'translate'); files = ''; list = $true; profiles = $true }; '--workload' = @{ values = @('agent', 'chat', 'code', 'creative', 'edit', 'rag', 'reasoning', 'summarize', 'text', 'translate'); files = ''; list = $true; profiles = $true }; '--prompts' = @{ values = @(); files = 'any' }; '--replay' = @{ values = @(); files = 'any' }; '--budget' = @{ values = @(); files = '' }; '--n-max' = @{ values = @(); files = '' }; '-c' = @{ values = @(); files = '' }; '--context' = @{ values = @(); files = '' }; '--parallel' = @{ values = @(); files = '' }; '--vram' = @{ values = @(); files = '' }; '--report' = @{ values = @(); files = 'any' }; '--csv' = @{ values = @(); files = 'any' }; '--plot' = @{ values = @(); files = 'any' }; '--url' = @{ values = @(); files = '' }; '--baseline-url' = @{ values = @(); files = '' }; '--model' = @{ values = @(); files = '' }; '--api-key' = @{ values = @(); files = '' }; '--llama-server' = @{ values = @('embedded'); files = 'any' } }
            arguments = @(@{ values = @(); files = 'gguf' })
        }
        'pick-draft' = @{
            commands = @()
            flags = @('--hub', '--download', '--measure', '--all', '--json', '-h', '--help')
            options = @{ '--dir' = @{ values = @(); files = 'folders' }; '-w' = @{ values = @('agent', 'chat', 'code', 'creative', 'edit', 'rag', 'reasoning', 'summarize', 'text', 'translate'); files = ''; list = $true; profiles = $true }; '--workload' = @{ values = @('agent', 'chat', 'code', 'creative', 'edit', 'rag', 'reasoning', 'summarize', 'text', 'translate'); files = ''; list = $true; profiles = $true }; '--llama-server' = @{ values = @('embedded'); files = 'any' }; '--text' = @{ values = @(); files = 'any' }; '--threads' = @{ values = @(); files = '' }; '-c' = @{ values = @(); files = '' }; '--context' = @{ values = @(); files = '' }; '--vram' = @{ values = @(); files = '' } }
            arguments = @(@{ values = @(); files = 'gguf' })
        }
        'lint' = @{
            commands = @()
            flags = @('--fix', '--json', '-h', '--help')
            options = @{ '--build' = @{ values = @(); files = '' }; '--llama-server' = @{ values = @('embedded'); files = 'any' } }
            arguments = @(@{ values = @(); files = 'any' })
        }
        'memory' = @{
            commands = @()
            flags = @('--json', '-h', '--help')
            options = @{ '--draft' = @{ values = @(); files = 'gguf' }; '--method' = @{ values = @('mtp', 'draft', 'eagle3', 'dflash', 'dspark', 'ngram-simple', 'ngram-map-k', 'ngram-map-k4v', 'ngram-mod', 'ngram-cache', 'none'); files = ''; list = $true }; '--n-max' = @{ values = @(); files = '' }; '-c' = @{ values = @(); files = '' }; '--context' = @{ values = @(); files = '' }; '-ctk' = @{ values = @('f32', 'f16', 'bf16', 'q8_0', 'q5_1', 'q5_0', 'q4_1', 'q4_0', 'iq4_nl'); files = '' }; '--cache-type-k' = @{ values = @('f32', 'f16', 'bf16', 'q8_0', 'q5_1', 'q5_0', 'q4_1', 'q4_0', 'iq4_nl'); files = '' }; '-ctv' = @{ values = @('f32', 'f16', 'bf16', 'q8_0', 'q5_1', 'q5_0', 'q4_1', 'q4_0', 'iq4_nl'); files = '' }; '--cache-type-v' = @{ values = @('f32', 'f16', 'bf16', 'q8_0', 'q5_1', 'q5_0', 'q4_1', 'q4_0', 'iq4_nl'); files = '' }; '--parallel' = @{ values = @(); files = '' }; '--draft-layers' = @{ values = @('auto', 'all'); files = '' }; '--draft-cache' = @{ values = @('f32', 'f16', 'bf16', 'q8_0', 'q5_1', 'q5_0', 'q4_1', 'q4_0', 'iq4_nl'); files = '' }; '-w' = @{ values = @('agent', 'chat', 'code', 'creative', 'edit', 'rag', 'reasoning', 'summarize', 'text', 'translate'); files = ''; list = $true; profiles = $true }; '--workload' = @{ values = @('agent', 'chat', 'code', 'creative', 'edit', 'rag', 'reasoning', 'summarize', 'text', 'translate'); files = ''; list = $true; profiles = $true }; '--vram' = @{ values = @(); files = '' }; '--prefer' = @{ values = @('speed', 'context'); files = '' }; '--llama-server' = @{ values = @('embedded'); files = 'any' } }
            arguments = @(@{ values = @(); files = 'gguf' })
        }
        'inspect' = @{
            commands = @()
            flags = @('--tensors', '--json', '-h', '--help')
            options = @{  }
            arguments = @(@{ values = @(); files = 'gguf' })
        }
        'results' = @{
            commands = @()
            flags = @('--clear', '-v', '--verbose', '--json', '-h', '--help')
            options = @{  }
            arguments = @(@{ values = @(); files = 'gguf' })
        }
        'doctor' = @{
            commands = @()
            flags = @('--json', '-h', '--help')
            options = @{ '--llama-server' = @{ values = @('embedded'); files = 'any' } }
            arguments = @()
        }
        'demo' = @{
            commands = @()
            flags = @('--dry-run', '--json', '-h', '--help')
            options = @{ '--llama-server' = @{ values = @('embedded'); files = 'any' } }
            arguments = @()
        }
        'profiles' = @{
            commands = @('list', 'show', 'new')
            flags = @('-h', '--help')
            options = @{  }
            arguments = @()
        }
        'profiles list' = @{
            commands = @()
            flags = @('--json', '-h', '--help')
            options = @{  }
            arguments = @()
        }
        'profiles show' = @{
            commands = @()
            flags = @('--prompts', '--json', '-h', '--help')
            options = @{  }
            arguments = @(@{ values = @('agent', 'chat', 'code', 'creative', 'edit', 'rag', 'reasoning', 'summarize', 'text', 'translate'); files = ''; list = $true; profiles = $true })
        }
        'profiles new' = @{
            commands = @()
            flags = @('--json', '-h', '--help')
            options = @{ '--from' = @{ values = @(); files = 'any' }; '--like' = @{ values = @('agent', 'chat', 'code', 'creative', 'edit', 'rag', 'reasoning', 'summarize', 'text', 'translate'); files = ''; profiles = $true } }
            arguments = @(@{ values = @(); files = '' })
        }
    }

    function Get-Files($word, $kind) {
        Get-ChildItem -Path "$word*" -ErrorAction SilentlyContinue | Where-Object {
            $_.PSIsContainer -or $kind -eq 'any' -or ($kind -eq 'gguf' -and $_.Extension -eq '.gguf')
        } | ForEach-Object {
            $parent = $word -replace '[^\\/]*$', ''
            $path = $parent + $_.Name
            if ($path -match '[^\w./\\:~+-]') { "'" + $path.Replace("'", "''") + "'" } else { $path }
        }
    }

    function Get-Values($takes, $word) {
        $values = @($takes.values)
        if ($takes.profiles) {
            $folders = @($env:LOCALAPPDATA, $env:XDG_CONFIG_HOME, "$HOME/.config",
                "$HOME/Library/Application Support") | Where-Object { $_ }
            $values += @($folders | ForEach-Object {
                Get-ChildItem -Path "$_/specllama/profiles/*.toml" -ErrorAction SilentlyContinue
            } | ForEach-Object { $_.BaseName })
        }
        $before = ''
        if ($takes.list -and $word -match '^(.*,)([^,]*)$') { $before, $word = $Matches[1], $Matches[2] }
        $values | Where-Object { $_ -and $_ -like "$word*" } | ForEach-Object { "$before$_" }
        if ($takes.files) { Get-Files $word $takes.files }
    }

    $words = @($commandAst.CommandElements | Select-Object -Skip 1 | Where-Object {
        $_.Extent.EndOffset -lt $cursorPosition
    } | ForEach-Object { $_.ToString() })
    $command = ''
    foreach ($word in $words) {
        $next = "$command $word".Trim()
        if ($commands.ContainsKey($next)) { $command = $next }
    }
    $here = $commands[$command]
    $last = if ($words.Count) { $words[-1] } else { '' }
    # A quote that is still open, and the option of --option=value, belong to the word.
    $word, $before = $wordToComplete.Trim("'", '"'), ''
    if ($word -match '^(--[^=]+)=(.*)$') {
        $last, $word, $before = $Matches[1], $Matches[2].Trim("'", '"'), "$($Matches[1])="
    }
    $found = if ($words -contains '--') { Get-Files $word 'any' }
        elseif ($here.options.ContainsKey($last)) { Get-Values $here.options[$last] $word }
        else {
            @($here.commands) + @($here.flags) + @($here.options.Keys) |
                Where-Object { $_ -like "$word*" } | Sort-Object
            if ($word -notlike '-*') {
                foreach ($takes in $here.arguments) { Get-Values $takes $word }
            }
        }
    $found | Where-Object { $_ } | ForEach-Object {
        [System.Management.Automation.CompletionResult]::new("$before$_", $_, 'ParameterValue', $_)
    }
}
