{{/* The operator's settings file. */}}
{{- define "fairlead.operatorSettings" -}}
{{- $gateway := dict "root" . "component" "gateway" -}}
{{- $operator := dict "root" . "component" "operator" -}}
{{- $service := printf "%s.%s" (include "fairlead.componentName" $gateway) .Release.Namespace -}}
{{- $port := int .Values.gateway.service.port -}}
engineImage: {{ include "fairlead.image" (dict "root" . "image" .Values.engineImage) | quote }}
engineImagePullPolicy: {{ .Values.engineImage.pullPolicy }}
engineImagePullSecrets: {{ include "fairlead.names" .Values.engineImage.pullSecrets }}
enginePodSecurityContext: {{ pick .Values.engines.podSecurityContext "runAsUser" "runAsGroup" "fsGroup" | toJson }}
gatewayUrl: {{ default (printf "http://%s%s" $service (ternary "" (printf ":%d" $port) (eq $port 80))) .Values.gateway.url | quote }}
gatewayService: {{ $service }}.svc.{{ .Values.clusterDomain }}
gatewayNamespace: {{ .Release.Namespace | quote }}
gatewaySelector: {{ include "fairlead.selectorLabels" $gateway | fromYaml | include "fairlead.selector" }}
operatorSelector: {{ include "fairlead.selectorLabels" $operator | fromYaml | include "fairlead.selector" }}
networkPolicies: {{ .Values.networkPolicy.engines }}
{{- with .Values.networkPolicy.monitoringNamespace }}
monitoringNamespace: {{ . | quote }}
{{- end }}
podDisruptionBudgets: {{ .Values.podDisruptionBudget.engines }}
podMonitors: {{ include "fairlead.enginePodMonitors" . }}
podMonitorLabels: {{ toJson .Values.monitoring.podMonitors.labels }}
podMonitorInterval: {{ .Values.monitoring.podMonitors.interval }}
podMonitorScrapeTimeout: {{ .Values.monitoring.podMonitors.scrapeTimeout }}
{{- if not .Values.watch.allNamespaces }}
watchNamespaces: {{ include "fairlead.watchedNamespaces" . }}
{{- end }}
leaseNamespace: {{ .Release.Namespace | quote }}
leaseName: {{ include "fairlead.componentName" $operator }}
leaseDuration: {{ .Values.operator.leaseDuration }}
resyncInterval: {{ .Values.operator.resyncInterval }}
autoscalerInterval: {{ .Values.operator.autoscalerInterval }}
workers: {{ .Values.operator.workers }}
logLevel: {{ .Values.operator.logLevel }}
logFormat: {{ .Values.operator.logFormat }}
nodeModelsFolder: {{ with .Values.downloads.nodeFolder }}{{ quote . }}{{ else }}null{{ end }}
downloadEnvironment: {{ toJson .Values.downloads.environment }}
{{- if .Values.admissionPolicy.enabled }}
admissionPolicy: {{ omit .Values.admissionPolicy "enabled" "validatingAdmissionPolicy" | toJson }}
{{- end }}
gpuBudgets: {{ toJson .Values.gpuBudgets }}
defaultProfile: {{ .Values.defaultProfile | quote }}
profiles:
  {{- range $name, $profile := .Values.profiles }}
  {{- if kindIs "map" $profile }}
  {{ $name | quote }}:
    {{- include "fairlead.profile" $profile | nindent 4 }}
  {{- end }}
  {{- end }}
{{- end }}

{{/* A profile as the operator reads it: every quantity is a string, as `cpu: 0.5` is none in YAML. Call with the profile. */}}
{{- define "fairlead.profile" -}}
{{- $profile := deepCopy . -}}
{{- range $part := list "requests" "limits" -}}
{{- range $resource, $quantity := get $profile $part | default dict -}}
{{- $_ := set (get $profile $part) $resource (include "fairlead.quantity" $quantity) -}}
{{- end -}}
{{- end -}}
{{- range $size := list "sharedMemory" "gpuMemory" -}}
{{- if hasKey $profile $size -}}
{{- $_ := set $profile $size (include "fairlead.quantity" (get $profile $size)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $profile -}}
{{- end }}

{{/* A quantity as text. Call with what a person wrote: text or a number. */}}
{{- define "fairlead.quantity" -}}
{{- if kindIs "string" . }}{{ . }}{{ else }}{{ include "fairlead.number" . }}{{ end -}}
{{- end }}

{{/* Labels as a selector: `a=b,c=d`. Call with a map. */}}
{{- define "fairlead.selector" -}}
{{- $parts := list -}}
{{- range $key, $value := . }}{{ $parts = append $parts (printf "%s=%s" $key $value) }}{{ end -}}
{{- join "," $parts -}}
{{- end }}

{{/* The names of objects, as a JSON list. Call with a list of `name: …`. */}}
{{- define "fairlead.names" -}}
{{- $names := list -}}
{{- range . }}{{ $names = append $names .name }}{{ end -}}
{{- toJson $names -}}
{{- end }}
