{{/* Beginning of every name: the release's, else fullnameOverride. At most 53 characters, so that the longest name made from it has 63. */}}
{{- define "fairlead.fullname" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 53 | trimSuffix "-" -}}
{{- end }}

{{/* What the pods of a component are, for labels. Call with (dict "root" $ "component" "gateway"). */}}
{{- define "fairlead.appName" -}}
{{- printf "%s-%s" (default .root.Chart.Name .root.Values.nameOverride | trunc 53 | trimSuffix "-") .component -}}
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

{{/* All labels of a component's objects. */}}
{{- define "fairlead.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "fairlead.selectorLabels" . }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/part-of: fairlead
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{/* Labels of a component's pods: without the chart's version, so that an upgrade that changes nothing restarts nothing. */}}
{{- define "fairlead.podLabels" -}}
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

{{/* Name of a component's ServiceAccount. */}}
{{- define "fairlead.serviceAccountName" -}}
{{- default (include "fairlead.componentName" .) (get .root.Values.serviceAccounts (printf "%sName" .component)) -}}
{{- end }}

{{/* Namespaces whose LLMDeployments are served, as a JSON list; not to be asked for with watch.allNamespaces. */}}
{{- define "fairlead.watchedNamespaces" -}}
{{- default (list .Release.Namespace) .Values.watch.namespaces | uniq | sortAlpha | toJson -}}
{{- end }}

{{/* Name of the Secret with the clients' keys. */}}
{{- define "fairlead.apiKeysSecret" -}}
{{- default (printf "%s-api-keys" (include "fairlead.fullname" .)) .Values.auth.existingSecret -}}
{{- end }}

{{/* A pod's securityContext, within the Pod Security Standard `restricted`. */}}
{{- define "fairlead.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* A container's securityContext, within the Pod Security Standard `restricted`. */}}
{{- define "fairlead.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Where a component's pods run: selectors, taints, spread. Call with (dict "root" $ "component" "gateway" "values" .Values.gateway). */}}
{{- define "fairlead.placement" -}}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $spread := .root.Values.topologySpread }}
{{- if and $spread.enabled (gt (int .values.replicas) 1) }}
topologySpreadConstraints:
  {{- range $spread.topologyKeys }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: {{ $spread.whenUnsatisfiable }}
    labelSelector:
      matchLabels:
        {{- include "fairlead.selectorLabels" $ | nindent 8 }}
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
{{- end }}

{{/* The peers that may read metrics, as items of a NetworkPolicy's `from`. */}}
{{- define "fairlead.monitoringPeer" -}}
- namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: {{ .Values.networkPolicy.monitoringNamespace | quote }}
{{- end }}
