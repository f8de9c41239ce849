{{/* The gateway's arguments, as a YAML list. */}}
{{- define "fairlead.gatewayArgs" -}}
- gateway
{{- if not .Values.watch.allNamespaces }}
{{- range include "fairlead.watchedNamespaces" . | fromJsonArray }}
- --namespace={{ . }}
{{- end }}
{{- end }}
{{- if .Values.auth.enabled }}
- --api-keys-dir=/etc/fairlead/api-keys
{{- else }}
- --no-api-keys
{{- end }}
- --log-level={{ .Values.gateway.logLevel }}
- --drain-delay={{ .Values.gateway.drain.delaySeconds }}
- --drain-timeout={{ .Values.gateway.drain.timeoutSeconds }}
{{- range $name, $value := .Values.gateway.settings }}
- --{{ kebabcase $name }}={{ include "fairlead.number" $value }}
{{- end }}
{{- end }}

{{/* A number as it was written: large ones come as floats and would be printed with an exponent. */}}
{{- define "fairlead.number" -}}
{{- if eq (float64 .) (float64 (int64 .)) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end }}
