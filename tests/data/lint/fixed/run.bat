rem don't
C:\l\llama-server.exe -m C:\m\t.gguf ^
  -md C:\m\d.gguf --spec-type draft-simple ^
  --spec-draft-n-max 8
