{{/* The operator's settings file. Fails for values that only contradict one another, which a schema cannot say. */}}
{{- define "fairlead.operatorSettings" -}}
{{- if and .Values.watch.allNamespaces .Values.watch.namespaces -}}
{{- fail "watch: namespaces and allNamespaces exclude each other; leave one of them out" -}}
{{- end -}}
{{- $profiles := concat (keys .Values.profiles) (list "cpu-small" "cpu-medium" "gpu") | uniq | sortAlpha -}}
{{- if and .Values.defaultProfile (not (has .Values.defaultProfile $profiles)) -}}
{{- fail (printf "defaultProfile: there is no profile %q; there are %s" .Values.defaultProfile (join ", " $profiles)) -}}
{{- end -}}
{{- $gateway := dict "root" . "component" "gateway" -}}
{{- $operator := dict "root" . "component" "operator" -}}
{{- $service := printf "%s.%s" (include "fairlead.componentName" $gateway) .Release.Namespace -}}
{{- $port := int .Values.gateway.service.port -}}
engineImage: {{ include "fairlead.image" (dict "root" . "image" .Values.engineImage) }}
gatewayUrl: {{ default (printf "http://%s%s" $service (ternary "" (printf ":%d" $port) (eq $port 80))) .Values.gateway.url }}
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
defaultProfile: {{ .Values.defaultProfile | quote }}
profiles:
  {{- range $name, $profile := .Values.profiles }}
  {{- if $profile }}
  {{ $name }}:
    {{- toYaml $profile | nindent 4 }}
  {{- end }}
  {{- end }}
{{- end }}

{{/* Labels as a selector: `a=b,c=d`. Call with a map. */}}
{{- define "fairlead.selector" -}}
{{- $parts := list -}}
{{- range $key, $value := . }}{{ $parts = append $parts (printf "%s=%s" $key $value) }}{{ end -}}
{{- join "," $parts -}}
{{- end }}
