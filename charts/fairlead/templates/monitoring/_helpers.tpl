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

{{/* An expression of files/alerts that asks only for this release: gateways and operator in its namespace, engines in those
     that it watches. Else a release that is up would hide one that is down. Call with (dict "root" $ "expression" $text).
     The series are found by the beginnings of their names, `up` by the label that it is asked for. */}}
{{- define "fairlead.scopedExpression" -}}
{{- $text := .expression -}}
{{- $system := printf "namespace=%q" .root.Release.Namespace -}}
{{- $text = regexReplaceAll `((?:fairlead_gateway_|fairlead_operator_|fairlead:)[\w:]+)\{` $text (printf "${1}{%s," $system) -}}
{{- $text = regexReplaceAll `((?:fairlead_gateway_|fairlead_operator_|fairlead:)[\w:]+)([^\w:{]|$)` $text (printf "${1}{%s}${2}" $system) -}}
{{- $text = $text | replace "up{job=" (printf "up{%s,job=" $system) -}}
{{- if not .root.Values.watch.allNamespaces -}}
{{- $watched := include "fairlead.watchedNamespaces" .root | fromJsonArray | join "|" | printf "namespace=~%q" -}}
{{- $text = regexReplaceAll `(fairlead_engine_\w+)\{` $text (printf "${1}{%s," $watched) -}}
{{- $text = regexReplaceAll `(fairlead_engine_\w+)([^\w{]|$)` $text (printf "${1}{%s}${2}" $watched) -}}
{{- $text = $text | replace "up{fairlead_dev_llmdeployment" (printf "up{%s,fairlead_dev_llmdeployment" $watched) -}}
{{- end -}}
{{- $text -}}
{{- end }}

{{/* "true" where the Prometheus operator's objects are made and the NetworkPolicies let nobody read what they are about. */}}
{{- define "fairlead.unreadableMetrics" -}}
{{- $monitoring := .Values.monitoring -}}
{{- $policy := .Values.networkPolicy -}}
{{- $made := and (or $monitoring.podMonitors.enabled $monitoring.rules.enabled) (include "fairlead.prometheusOperator" .) -}}
{{- if and $made (or $policy.enabled $policy.engines) (not $policy.monitoringNamespace) -}}
true
{{- end -}}
{{- end }}
