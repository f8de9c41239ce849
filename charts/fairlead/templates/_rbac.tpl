{{/* What the operator may do in a namespace that it looks after. */}}
{{- define "fairlead.operatorRules" -}}
- apiGroups: [fairlead.dev]
  resources: [llmdeployments]
  verbs: [get, list, watch]
- apiGroups: [fairlead.dev]
  resources: [llmdeployments/status, llmdeployments/scale]
  verbs: [patch]
# Owner references that block the owner's deletion need this where OwnerReferencesPermissionEnforcement is on.
- apiGroups: [fairlead.dev]
  resources: [llmdeployments/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [configmaps, services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [resource.k8s.io]
  resources: [resourceclaimtemplates]
  verbs: [get, list, watch, create, patch, delete]
# Marks the pods that a scale-down has chosen, and removes those that were drained.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get]
# Reads what keeps a pod of ours from being created.
- apiGroups: [""]
  resources: [events]
  verbs: [list, create, patch]
{{- end }}

{{/* What the operator may read of the cluster's devices. */}}
{{- define "fairlead.deviceRules" -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [list]
- apiGroups: [resource.k8s.io]
  resources: [resourceslices, deviceclasses]
  verbs: [list]
{{- end }}

{{/* What the gateway may do in a namespace whose models it serves. */}}
{{- define "fairlead.gatewayRules" -}}
- apiGroups: [fairlead.dev]
  resources: [llmdeployments]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
{{- end }}

{{/* The rights of a component over what it watches: a ClusterRole, or a Role in each watched namespace.
Call with (dict "root" $ "component" "gateway" "rules" "fairlead.gatewayRules"). */}}
{{- define "fairlead.watchRoles" -}}
{{- $name := include "fairlead.componentName" . -}}
{{- if .root.Values.watch.allNamespaces }}
{{- include "fairlead.role" (dict "context" . "prefix" "Cluster" "namespace" "" "name" $name) }}
{{- else }}
{{- range $namespace := include "fairlead.watchedNamespaces" .root | fromJsonArray }}
{{- include "fairlead.role" (dict "context" $ "prefix" "" "namespace" $namespace "name" $name) }}
{{- end }}
{{- end }}
{{- end }}

{{/* One (Cluster)Role and its binding. */}}
{{- define "fairlead.role" -}}
{{- $name := .name -}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .prefix }}Role
metadata:
  name: {{ $name }}
  {{- with .namespace }}
  namespace: {{ . | quote }}
  {{- end }}
  labels:
    {{- include "fairlead.labels" .context | nindent 4 }}
rules:
  {{- include .context.rules .context.root | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .prefix }}RoleBinding
metadata:
  name: {{ $name }}
  {{- with .namespace }}
  namespace: {{ . | quote }}
  {{- end }}
  labels:
    {{- include "fairlead.labels" .context | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .prefix }}Role
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ include "fairlead.serviceAccountName" .context | quote }}
    namespace: {{ .context.root.Release.Namespace | quote }}
{{ end }}
