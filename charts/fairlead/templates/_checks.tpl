{{/* Fails, with a sentence, for values that a schema takes and that cannot work together. */}}
{{- define "fairlead.checks" -}}
{{- include "fairlead.checkWatch" . -}}
{{- include "fairlead.checkProfiles" . -}}
{{- include "fairlead.checkTimes" . -}}
{{- include "fairlead.checkServiceAccounts" . -}}
{{- include "fairlead.checkService" . -}}
{{- end }}

{{- define "fairlead.checkWatch" -}}
{{- if and .Values.watch.allNamespaces .Values.watch.namespaces -}}
{{- fail "watch: namespaces and allNamespaces exclude each other; leave one of them out" -}}
{{- end -}}
{{- end }}

{{/* The operator refuses every LLMDeployment with such a profile; whoever writes the profile should hear of it first. */}}
{{- define "fairlead.checkProfiles" -}}
{{- $profiles := list "cpu-small" "cpu-medium" "gpu" -}}
{{- range $name, $profile := .Values.profiles -}}
{{- if kindIs "map" $profile -}}
{{- $profiles = append $profiles $name -}}
{{- range $part := list "limits" "requests" -}}
{{- include "fairlead.checkGpus" (dict "field" (printf "profiles.%s.%s" $name $part) "quantities" (get $profile $part | default dict)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $profiles = $profiles | uniq | sortAlpha -}}
{{- if and .Values.defaultProfile (not (has .Values.defaultProfile $profiles)) -}}
{{- fail (printf "defaultProfile: there is no profile %q; there are %s" .Values.defaultProfile (join ", " $profiles)) -}}
{{- end -}}
{{- end }}

{{- define "fairlead.checkGpus" -}}
{{- $field := .field -}}
{{- $gpus := 0 -}}
{{- range $resource, $quantity := .quantities -}}
{{- if regexMatch "/(gpu|mig-)" $resource -}}
{{- $written := include "fairlead.quantity" $quantity -}}
{{- $gpus = add $gpus (ternary (int $written) 2 (has $written (list "0" "1"))) -}}
{{- end -}}
{{- end -}}
{{- if gt $gpus 1 -}}
{{- fail (printf "%s: asks for %s, and the engine of this version computes on one GPU: ask for 1" $field (toJson .quantities)) -}}
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
{{- $accounts := .Values.serviceAccounts -}}
{{- if not (or $accounts.create (and $accounts.operatorName $accounts.gatewayName)) -}}
{{- fail "serviceAccounts: with create: false, operatorName and gatewayName must name accounts that exist" -}}
{{- end -}}
{{- $operator := include "fairlead.serviceAccountName" (dict "root" . "component" "operator") -}}
{{- if eq $operator (include "fairlead.serviceAccountName" (dict "root" . "component" "gateway")) -}}
{{- fail (printf "serviceAccounts: the operator's and the gateway's are both %s; give each one of its own, or each has the other's rights" $operator) -}}
{{- end -}}
{{- end }}

{{/* The API server refuses these, and only when everything before the Service is installed. */}}
{{- define "fairlead.checkService" -}}
{{- $service := .Values.gateway.service -}}
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

{{/* Seconds in a duration: `1m30s` → 90. */}}
{{- define "fairlead.seconds" -}}
{{- $units := dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 "d" 86400.0 -}}
{{- $seconds := 0.0 -}}
{{- range $part := regexFindAll "[0-9]+([.][0-9]+)?(ms|s|m|h|d)" . -1 -}}
{{- $unit := regexFind "[a-z]+" $part -}}
{{- $seconds = addf $seconds (mulf (trimSuffix $unit $part) (get $units $unit)) -}}
{{- end -}}
{{- $seconds -}}
{{- end }}
