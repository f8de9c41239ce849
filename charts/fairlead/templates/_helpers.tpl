{{/* Beginning of every name: fullnameOverride, else the release's. At most 53 characters, so that the longest name made from it has 63.
A release may have a name that a Service may not: `2026`, `my.release`. */}}
{{- define "fairlead.fullname" -}}
{{- $name := default .Release.Name .Values.fullnameOverride | trunc 53 | trimSuffix "-" -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- fail (printf "release %s: a Service's name begins with a letter and has no dots; set fullnameOverride to such a name" $name) -}}
{{- end -}}
{{- $name -}}
{{- end }}

{{/* What the pods of a component are, for labels. Call with (dict "root" $ "component" "gateway"). */}}
{{- define "fairlead.appName" -}}
{{- $room := min 53 (sub 62 (len .component)) | int -}}
{{- printf "%s-%s" (default .root.Chart.Name .root.Values.nameOverride | trunc $room | trimSuffix "-") .component -}}
{{- end }}

{{/* Name of a component's objects. Call with (dict "root" $ "component" "gateway"). */}}
{{- define "fairlead.componentName" -}}
{{- printf "%s-%s" (include "fairlead.fullname" .root) .component -}}
{{- end }}

{{/* Labels that select a component's pods; they never change within a release. */}}
{{- define "fairlead.selectorLabels" -}}
app.kubernetes.io/name: {{ include "fairlead.appName" . }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
{{- end }}

{{/* All labels of a component's objects; ours cannot be replaced (the schema says so). Those of `more`, which may be missing, win over commonLabels. */}}
{{- define "fairlead.labels" -}}
{{- $own := include "fairlead.ownLabels" . | fromYaml -}}
{{- toYaml (merge $own (.more | default dict) (.root.Values.commonLabels | default dict)) -}}
{{- end }}

{{- define "fairlead.ownLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "fairlead.selectorLabels" . }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/part-of: fairlead
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{/* Labels of a component's pods: without the chart's version, so that an upgrade that changes nothing restarts nothing.
Call with (dict "root" $ "component" "gateway" "values" .Values.gateway). */}}
{{- define "fairlead.podLabels" -}}
{{- $own := include "fairlead.ownPodLabels" . | fromYaml -}}
{{- toYaml (merge $own (.values.podLabels | default dict) (.root.Values.commonLabels | default dict)) -}}
{{- end }}

{{- define "fairlead.ownPodLabels" -}}
{{ include "fairlead.selectorLabels" . }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/part-of: fairlead
{{- end }}

{{/* An image reference. Call with (dict "root" $ "image" .Values.image). */}}
{{- define "fairlead.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ default .root.Chart.AppVersion .image.tag }}
{{- end -}}
{{- end }}

{{/* "true" where a repository names its registry, as container runtimes read it. Call with the repository. */}}
{{- define "fairlead.namesRegistry" -}}
{{- $parts := splitList "/" . -}}
{{- if and (gt (len $parts) 1) (or (contains "." (first $parts)) (contains ":" (first $parts)) (eq (first $parts) "localhost")) -}}
true
{{- end -}}
{{- end }}

{{/* Name of a component's ServiceAccount. Call with (dict "root" $ "component" "gateway"). */}}
{{- define "fairlead.serviceAccountName" -}}
{{- default (include "fairlead.componentName" .) (get .root.Values .component).serviceAccount.name -}}
{{- end }}

{{/* Namespaces whose LLMDeployments are served, as a JSON list; not to be asked for with watch.allNamespaces. */}}
{{- define "fairlead.watchedNamespaces" -}}
{{- default (list .Release.Namespace) .Values.watch.namespaces | uniq | sortAlpha | toJson -}}
{{- end }}

{{/* Name of the Secret with the clients' keys. */}}
{{- define "fairlead.apiKeysSecret" -}}
{{- default (printf "%s-api-keys" (include "fairlead.fullname" .)) .Values.auth.existingSecret -}}
{{- end }}

{{/* A pod's securityContext, within the Pod Security Standard `restricted`. Call with .Values.gateway, for instance. */}}
{{- define "fairlead.podSecurityContext" -}}
{{- $own := dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- toYaml (mergeOverwrite $own (.podSecurityContext | default dict)) -}}
{{- end }}

{{/* A container's securityContext, within the Pod Security Standard `restricted`. */}}
{{- define "fairlead.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Which nodes a pod may run on, and how much it matters. Call with .Values.gateway, for instance. */}}
{{- define "fairlead.nodes" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Most pods of a component that there may be. Call with (dict "root" $ "component" "gateway"). */}}
{{- define "fairlead.mostReplicas" -}}
{{- $values := get .root.Values .component -}}
{{- $autoscaling := $values.autoscaling | default dict -}}
{{- if $autoscaling.enabled }}{{ $autoscaling.maxReplicas }}{{ else }}{{ $values.replicas }}{{ end -}}
{{- end }}

{{/* Where a component's pods run: selectors, taints, spread. Call with (dict "root" $ "component" "gateway" "values" .Values.gateway). */}}
{{- define "fairlead.placement" -}}
{{- include "fairlead.nodes" .values }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $spread := .root.Values.topologySpread }}
{{- if and $spread.enabled (gt (include "fairlead.mostReplicas" . | int) 1) }}
topologySpreadConstraints:
  {{- range $spread.topologyKeys }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: {{ $spread.whenUnsatisfiable }}
    labelSelector:
      matchLabels:
        {{- include "fairlead.selectorLabels" $ | nindent 8 }}
    {{- /* Each revision by itself, or the pods of the old one push the new ones together. */}}
    matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- end }}
{{- end }}

{{/* The three probes of a program that answers /ready and /health on the port `control`. */}}
{{- define "fairlead.probes" -}}
startupProbe:
  httpGet: {path: /ready, port: control}
  periodSeconds: 1
  timeoutSeconds: 2
  failureThreshold: 120
readinessProbe:
  httpGet: {path: /ready, port: control}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /health, port: control}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
  {{- /* One that is frozen obeys no SIGTERM, and would be waited for as long as one that drains. */}}
  terminationGracePeriodSeconds: 10
{{- end }}

{{/* A number as it was written: large ones come as floats and would be printed with an exponent. */}}
{{- define "fairlead.number" -}}
{{- if eq (float64 .) (float64 (int64 .)) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end }}

{{/* Seconds in a duration: `1m30s` → 90. */}}
{{- define "fairlead.seconds" -}}
{{- $units := dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 "d" 86400.0 -}}
{{- $seconds := 0.0 -}}
{{- range $part := regexFindAll "[0-9]+([.][0-9]+)?(ms|s|m|h|d)" . -1 -}}
{{- $unit := regexFind "[a-z]+" $part -}}
{{- $seconds = addf $seconds (mulf (trimSuffix $unit $part) (get $units $unit)) -}}
{{- end -}}
{{- include "fairlead.number" $seconds -}}
{{- end }}

{{/* The peers that may read metrics, as items of a NetworkPolicy's `from`. */}}
{{- define "fairlead.monitoringPeer" -}}
- namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: {{ .Values.networkPolicy.monitoringNamespace | quote }}
{{- end }}

{{/* "true" where the API server is to refuse what the operator would. */}}
{{- define "fairlead.validatingAdmissionPolicy" -}}
{{- $policy := .Values.admissionPolicy -}}
{{- $served := semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version -}}
{{- $wanted := $policy.validatingAdmissionPolicy -}}
{{- if and $policy.enabled (or (eq $wanted "always") (and (eq $wanted "auto") $served)) -}}
true
{{- end -}}
{{- end }}

{{/* What LLMDeployments may ask for, as JSON, but for the namespaces where they may ask for anything. */}}
{{- define "fairlead.admissionLimits" -}}
{{- omit .Values.admissionPolicy "enabled" "validatingAdmissionPolicy" "exemptNamespaces" | toJson -}}
{{- end }}
