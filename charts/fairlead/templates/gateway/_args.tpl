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
- --log-format={{ .Values.gateway.logFormat }}
- --drain-delay={{ include "fairlead.seconds" .Values.gateway.drain.delay }}
- --drain-timeout={{ include "fairlead.seconds" .Values.gateway.drain.timeout }}
{{- if .Values.gateway.responseStore.secret }}
- --response-store=@/etc/fairlead/response-store/url
{{- end }}
- --response-retention={{ include "fairlead.seconds" .Values.gateway.responseStore.retention }}
{{- with .Values.gateway.fileStore }}
{{- if or .claim .bucket }}
- {{ printf "--file-store=%s" (empty .claim | ternary .bucket "/var/lib/fairlead/files") | quote }}
{{- end }}
- --file-retention={{ include "fairlead.seconds" .retention }}
{{- end }}
{{- if .Values.gateway.grpc.enabled }}
- --grpc-port=8082
{{- end }}
{{- range $name, $value := .Values.gateway.settings }}
{{- if kindIs "bool" $value }}
- --{{ ternary "" "no-" $value }}{{ kebabcase $name }}
{{- else if or (hasSuffix "Timeout" $name) (not (kindIs "string" $value)) }}
- --{{ kebabcase $name }}={{ include (ternary "fairlead.seconds" "fairlead.number" (kindIs "string" $value)) $value }}
{{- else }}
- {{ printf "--%s=%s" (kebabcase $name) $value | quote }}
{{- end }}
{{- end }}
{{- range .Values.gateway.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}
