{{/* Fails, with a sentence, for values that a schema takes and that cannot work together. */}}
{{- define "fairlead.checks" -}}
{{- include "fairlead.checkOldSpellings" . -}}
{{- include "fairlead.checkUnits" . -}}
{{- include "fairlead.checkWatch" . -}}
{{- include "fairlead.checkFileStore" . -}}
{{- include "fairlead.checkProfiles" . -}}
{{- include "fairlead.checkTimes" . -}}
{{- include "fairlead.checkServiceAccounts" . -}}
{{- include "fairlead.checkService" . -}}
{{- include "fairlead.checkExtras" . -}}
{{- include "fairlead.checkClients" . -}}
{{- include "fairlead.checkSizes" . -}}
{{- include "fairlead.checkAutoscaling" . -}}
{{- include "fairlead.checkHTTPRoute" . -}}
{{- end }}

{{- define "fairlead.checkOldSpellings" -}}
{{- if .Values.serviceAccounts -}}
{{- fail "serviceAccounts: is now operator.serviceAccount and gateway.serviceAccount, each with create, name and annotations" -}}
{{- end -}}
{{- range $old, $new := dict "delaySeconds" "delay" "timeoutSeconds" "timeout" -}}
{{- if hasKey $.Values.gateway.drain $old -}}
{{- $written := include "fairlead.number" (get $.Values.gateway.drain $old) -}}
{{- fail (printf "gateway.drain.%s: is now gateway.drain.%s, with a unit: write %s: %ss" $old $new $new $written) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Bare numbers, which were seconds in some of these once. */}}
{{- define "fairlead.checkUnits" -}}
{{- $operator := pick .Values.operator "leaseDuration" "resyncInterval" "autoscalerInterval" -}}
{{- range $section, $values := dict "operator" $operator "gateway.drain" .Values.gateway.drain "gateway.responseStore" (pick .Values.gateway.responseStore "retention") "gateway.fileStore" (pick .Values.gateway.fileStore "retention") "gateway.settings" .Values.gateway.settings -}}
{{- range $name, $value := $values -}}
{{- $isTime := or (ne $section "gateway.settings") (hasSuffix "Timeout" $name) -}}
{{- if and $isTime (not (kindIs "string" $value)) -}}
{{- $written := include "fairlead.number" $value -}}
{{- fail (printf "%s.%s: %s has no unit: write %ss for seconds" $section $name $written $written) -}}
{{- end -}}
{{- if and (has $section (list "gateway.responseStore" "gateway.fileStore" "gateway.settings")) $isTime (le (include "fairlead.seconds" $value | float64) 0.0) -}}
{{- fail (printf "%s.%s: is %s; use more than 0" $section $name $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "fairlead.checkFileStore" -}}
{{- with .Values.gateway.fileStore -}}
{{- if and .claim .bucket -}}
{{- fail "gateway.fileStore: claim and bucket exclude each other; leave one of them empty" -}}
{{- end -}}
{{- if and (or .claim .bucket) (not $.Values.gateway.responseStore.secret) -}}
{{- fail "gateway.fileStore: needs gateway.responseStore.secret, whose database has the list of files" -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "fairlead.checkWatch" -}}
{{- if and .Values.watch.allNamespaces .Values.watch.namespaces -}}
{{- fail "watch: namespaces and allNamespaces exclude each other; leave one of them out" -}}
{{- end -}}
{{- end }}

{{/* With these the operator would not start, or refuse every LLMDeployment that names no profile. */}}
{{- define "fairlead.checkProfiles" -}}
{{- $profiles := list "cpu-small" "cpu-medium" "cpu-large" "gpu" -}}
{{- range $name, $profile := .Values.profiles -}}
{{- if kindIs "map" $profile -}}
{{- $profiles = append $profiles $name -}}
{{- include "fairlead.checkVariables" (dict "where" (printf "profiles.%s.env" $name) "variables" $profile.env) -}}
{{- end -}}
{{- end -}}
{{- $profiles = $profiles | uniq | sortAlpha -}}
{{- if and .Values.defaultProfile (not (has .Values.defaultProfile $profiles)) -}}
{{- fail (printf "defaultProfile: there is no profile %q; there are %s" .Values.defaultProfile (join ", " $profiles)) -}}
{{- end -}}
{{- end }}

{{- define "fairlead.checkVariables" -}}
{{- $where := .where -}}
{{- $names := list -}}
{{- range .variables -}}
{{- if regexMatch "^(FAIRLEAD_.*|POD_IP|VLLM_API_KEY|LLAMA_API_KEY|LLAMA_ARG_(ALIAS|API_PREFIX|HOST|MODEL|PORT|SSL_CERT_FILE|SSL_KEY_FILE))$" .name -}}
{{- fail (printf "%s: %s is said by the operator, or would keep it out; leave it out" $where .name) -}}
{{- end -}}
{{- if has .name $names -}}
{{- fail (printf "%s: %s is there twice; leave one of them out" $where .name) -}}
{{- end -}}
{{- if and (hasKey . "value") .valueFrom -}}
{{- fail (printf "%s: %s has both value and valueFrom; leave one of them out" $where .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- end }}

{{/* The operator has the same bounds, and would not start; Prometheus refuses the third, and with it all that it is to scrape. */}}
{{- define "fairlead.checkTimes" -}}
{{- $least := dict "leaseDuration" "3s" "resyncInterval" "3s" "autoscalerInterval" "100ms" -}}
{{- range $name, $bound := $least -}}
{{- $value := get $.Values.operator $name -}}
{{- if lt (include "fairlead.seconds" $value | float64) (include "fairlead.seconds" $bound | float64) -}}
{{- fail (printf "operator.%s: is only %s; use %s or more" $name $value $bound) -}}
{{- end -}}
{{- end -}}
{{- $scrape := .Values.monitoring.podMonitors -}}
{{- if gt (include "fairlead.seconds" $scrape.scrapeTimeout | float64) (include "fairlead.seconds" $scrape.interval | float64) -}}
{{- fail (printf "monitoring.podMonitors: a scrapeTimeout of %s is longer than the interval of %s; set it to at most the interval" $scrape.scrapeTimeout $scrape.interval) -}}
{{- end -}}
{{- end }}

{{- define "fairlead.checkServiceAccounts" -}}
{{- range $component := list "operator" "gateway" -}}
{{- $account := (get $.Values $component).serviceAccount -}}
{{- if not (or $account.create $account.name) -}}
{{- fail (printf "%s.serviceAccount: with create: false, name must name an account that exists" $component) -}}
{{- end -}}
{{- end -}}
{{- $operator := include "fairlead.serviceAccountName" (dict "root" . "component" "operator") -}}
{{- if eq $operator (include "fairlead.serviceAccountName" (dict "root" . "component" "gateway")) -}}
{{- fail (printf "operator.serviceAccount and gateway.serviceAccount: both are %s; give each one of its own, or each has the other's rights" $operator) -}}
{{- end -}}
{{- end }}

{{- define "fairlead.checkAutoscaling" -}}
{{- $hpa := .Values.gateway.autoscaling -}}
{{- if $hpa.enabled -}}
{{- if ne (int .Values.gateway.replicas) 2 -}}{{/* the default, which nobody can be seen to have set */}}
{{- fail (printf "gateway.replicas: is %d, and gateway.autoscaling decides the number; leave it out, or set gateway.autoscaling.minReplicas" (int .Values.gateway.replicas)) -}}
{{- end -}}
{{- if gt (int $hpa.minReplicas) (int $hpa.maxReplicas) -}}
{{- fail (printf "gateway.autoscaling: minReplicas %d is above maxReplicas %d" (int $hpa.minReplicas) (int $hpa.maxReplicas)) -}}
{{- end -}}
{{- if not (or $hpa.metrics (hasKey (.Values.gateway.resources.requests | default dict) "cpu")) -}}
{{- fail "gateway.autoscaling: targetCPUUtilization is a share of gateway.resources.requests.cpu; set that, or metrics" -}}
{{- end -}}
{{- if and (not $hpa.metrics) (regexMatch "^0*[.]?0*[a-zA-Z]*$" (toString .Values.gateway.resources.requests.cpu)) -}}
{{- fail "gateway.autoscaling: targetCPUUtilization is a share of gateway.resources.requests.cpu, which is 0; set more, or metrics" -}}
{{- end -}}
{{- if not (.Capabilities.APIVersions.Has "autoscaling/v2") -}}
{{- fail "gateway.autoscaling: this cluster does not serve autoscaling/v2, which Kubernetes has from 1.23 on; set enabled: false" -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "fairlead.checkHTTPRoute" -}}
{{- if and .Values.gateway.httpRoute.enabled (not .Values.gateway.httpRoute.parentRefs) -}}
{{- fail "gateway.httpRoute.parentRefs: name the Gateway to attach to, or nobody serves the route" -}}
{{- end -}}
{{- end }}

{{/* The API server refuses these, and only when everything before the Service is installed. */}}
{{- define "fairlead.checkService" -}}
{{- $service := .Values.gateway.service -}}
{{- if and .Values.gateway.grpc.enabled (eq (int .Values.gateway.grpc.port) (int $service.port)) -}}
{{- fail (printf "gateway.grpc.port: is %d, as gateway.service.port; use another" (int $service.port)) -}}
{{- end -}}
{{- range $name := list "nodePort" "externalTrafficPolicy" -}}
{{- if and (get $service $name) (eq $service.type "ClusterIP") -}}
{{- fail (printf "gateway.service.%s: is for the types NodePort and LoadBalancer, not for ClusterIP" $name) -}}
{{- end -}}
{{- end -}}
{{- range $name := list "loadBalancerClass" "loadBalancerSourceRanges" -}}
{{- if and (get $service $name) (ne $service.type "LoadBalancer") -}}
{{- fail (printf "gateway.service.%s: is for the type LoadBalancer, not for %s" $name $service.type) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* What a pod has twice, or lacks, the API server tells of only when half of the release is installed, and without the value's name. */}}
{{- define "fairlead.checkExtras" -}}
{{- $own := dict "operator" (dict "settings" "/etc/fairlead" "scratch" "/tmp") "gateway" (dict "api-keys" "/etc/fairlead/api-keys" "response-store" "/etc/fairlead/response-store" "files" "/var/lib/fairlead/files" "scratch" "/tmp") -}}
{{- range $component, $mounted := $own -}}
{{- $values := get $.Values $component -}}
{{- $volumes := keys $mounted -}}
{{- $paths := values $mounted -}}
{{- $variables := list -}}
{{- range $values.extraEnv -}}
{{- if has .name $variables -}}
{{- fail (printf "%s.extraEnv: %s is there twice; leave one of them out" $component .name) -}}
{{- end -}}
{{- $variables = append $variables .name -}}
{{- end -}}
{{- range $values.extraVolumes -}}
{{- if has .name $volumes -}}
{{- fail (printf "%s.extraVolumes: %s is there twice; give each volume a name of its own" $component .name) -}}
{{- end -}}
{{- $volumes = append $volumes .name -}}
{{- end -}}
{{- range $values.extraVolumeMounts -}}
{{- if not (has .name $volumes) -}}
{{- fail (printf "%s.extraVolumeMounts: there is no volume %s; there are %s" $component .name (join ", " (sortAlpha $volumes))) -}}
{{- end -}}
{{- $path := clean .mountPath -}}
{{- if has $path $paths -}}
{{- fail (printf "%s.extraVolumeMounts: something is mounted at %s already; choose another mountPath for %s" $component $path .name) -}}
{{- end -}}
{{- $paths = append $paths $path -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "fairlead.checkClients" -}}
{{- range .Values.networkPolicy.clients -}}
{{- if and .ipBlock (or (hasKey . "podSelector") (hasKey . "namespaceSelector")) -}}
{{- fail "networkPolicy.clients: an ipBlock stands alone; write the selectors as another item of the list" -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The gateway has the same bound, and would not start. */}}
{{- define "fairlead.checkSizes" -}}
{{- $settings := .Values.gateway.settings -}}
{{- range $name := list "maxPartialBodyBytes" "maxQueueBytes" -}}
{{- if lt (get $settings $name | int64) (int64 $settings.maxBodyBytes) -}}
{{- fail (printf "gateway.settings.%s: %d is below maxBodyBytes %d; raise it, or lower maxBodyBytes" $name (get $settings $name | int64) (int64 $settings.maxBodyBytes)) -}}
{{- end -}}
{{- end -}}
{{- end }}
