{{/* "true" where the Prometheus operator's objects are to be made: asked for, or served by this cluster. */}}
{{- define "fairlead.prometheusOperator" -}}
{{- $wanted := .Values.monitoring.prometheusOperator -}}
{{- if or (eq $wanted "always") (and (eq $wanted "auto") (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) -}}
true
{{- end -}}
{{- end }}

{{/* Whether the operator gives each LLMDeployment a PodMonitor. It looks by itself whether the cluster serves them. */}}
{{- define "fairlead.enginePodMonitors" -}}
{{- $monitoring := .Values.monitoring -}}
{{- and $monitoring.podMonitors.enabled $monitoring.podMonitors.engines (ne $monitoring.prometheusOperator "never") -}}
{{- end }}
