{{- define "tiered.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What selectors go by: a list of the root and the component. */}}
{{- define "tiered.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ default $root.Chart.Name $root.Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "tiered.labels" -}}
{{- $root := index . 0 -}}
{{ include "tiered.selector" . }}
app.kubernetes.io/part-of: tiered
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* A list of the root and the image's name. */}}
{{- define "tiered.image" -}}
{{- $image := (index . 0).Values.image -}}
{{- $tag := default (index . 0).Chart.AppVersion $image.tag -}}
{{- if eq $tag "latest" }}{{ fail "image.tag: latest names no release, so that nodes would run different ones; give a version or a digest" }}{{ end -}}
{{- with $image.registry }}{{ . | trimSuffix "/" }}/{{ end -}}
{{- index . 1 -}}
{{- if hasPrefix "sha256:" $tag }}@{{ else }}:{{ end }}{{ $tag -}}
{{- end -}}

{{/* A quantity such as 4Gi in MiB. values.schema.json lets no other form through. */}}
{{- define "tiered.mebibytes" -}}
{{- $number := regexFind "^[0-9]+" . | int64 -}}
{{- $unit := regexFind "[A-Z]i$" . -}}
{{- mul $number (get (dict "Mi" 1 "Gi" 1024 "Ti" 1048576) $unit) -}}
{{- end -}}

{{- define "tiered.secretName" -}}
{{- .Values.secrets.existingSecret | default (printf "%s-secrets" (include "tiered.fullname" .)) -}}
{{- end -}}

{{/* Settings of a service as its environment: a list of the prefix and {group: {field: value}}. */}}
{{- define "tiered.settings" -}}
{{- $prefix := index . 0 -}}
{{- range $group, $fields := index . 1 }}
{{- range $field, $value := $fields }}
- name: {{ printf "%s%s__%s" $prefix (upper $group) (upper $field) }}
  value: {{ include "tiered.plain" $value | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* YAML's numbers are floats in templates; 50000000 is not to become 5e+07. */}}
{{- define "tiered.plain" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end -}}

{{/* What workers and coordinators have in common. A list of the root and the prefix. */}}
{{- define "tiered.sharedEnv" -}}
{{- $root := index . 0 -}}
{{- $prefix := index . 1 -}}
- name: {{ $prefix }}CLUSTER__SECRET_FILE
  value: /run/secrets/tiered/cluster-secret
{{- if $root.Values.redis.bundled }}
- name: {{ $prefix }}REDIS__URL
  value: redis://tiered@{{ include "tiered.fullname" $root }}-redis:6379
- name: {{ $prefix }}REDIS__PASSWORD_FILE
  value: /run/secrets/tiered/redis-password
{{- else }}
- name: {{ $prefix }}REDIS__URL_FILE
  value: /run/secrets/tiered/redis-url
{{- end }}
- name: {{ $prefix }}REDIS__NAMESPACE
  value: {{ $root.Values.cluster.namespace | quote }}
- name: {{ $prefix }}REDIS__PARTITIONS
  value: {{ $root.Values.cluster.partitions | quote }}
{{- end -}}

{{/* Their secrets as files, readable to the pod's group: a list of the root and the keys. */}}
{{- define "tiered.secretsVolume" -}}
{{- $root := index . 0 -}}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      - secret:
          name: {{ include "tiered.secretName" $root | quote }}
          items:
            {{- range index . 1 }}
            - {key: {{ . }}, path: {{ . }}}
            {{- end }}
            {{- if $root.Values.redis.bundled }}
            - {key: redis-password, path: redis-password}
            {{- end }}
      {{- if not $root.Values.redis.bundled }}
      - secret:
          name: {{ required "redis.bundled is false: name the Secret that holds your Redis' URL in redis.external.existingSecret" $root.Values.redis.external.existingSecret | quote }}
          items:
            - {key: {{ $root.Values.redis.external.key | quote }}, path: redis-url}
      {{- end }}
{{- end -}}

{{/* What every pod has. A list of the root and the component's values. */}}
{{- define "tiered.pod" -}}
{{- $root := index . 0 -}}
{{- $values := index . 1 -}}
serviceAccountName: {{ include "tiered.fullname" $root | quote }}
automountServiceAccountToken: false
# Services named tiered-... would put variables into the environment that our settings refuse.
enableServiceLinks: false
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* No chart's version among a pod's labels: a new chart is no reason to start every pod anew. */}}
{{- define "tiered.podLabels" -}}
{{ include "tiered.selector" . }}
app.kubernetes.io/part-of: tiered
{{- end -}}

{{- define "tiered.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .Values.user.uid | int64 }}
runAsGroup: {{ .Values.user.gid | int64 }}
fsGroup: {{ .Values.user.gid | int64 }}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "tiered.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "tiered.dnsEgress" -}}
- to: {{- toYaml .Values.networkPolicy.dns.to | nindent 4 }}
  ports:
    - {port: {{ .Values.networkPolicy.dns.port }}, protocol: UDP}
    - {port: {{ .Values.networkPolicy.dns.port }}, protocol: TCP}
{{- end -}}

{{- define "tiered.redisEgress" -}}
{{- if .Values.redis.bundled -}}
- to:
    - podSelector: {matchLabels: {{ include "tiered.selectorFlow" (list . "redis") }}}
  ports:
    - port: 6379
{{- else -}}
- ports:
{{- range .Values.networkPolicy.externalRedis.ports }}
    - port: {{ . }}
{{- end }}
{{- with .Values.networkPolicy.externalRedis.to }}
  to: {{- toYaml . | nindent 4 }}
{{- end }}
{{- end -}}
{{- end -}}

{{- define "tiered.selectorFlow" -}}
{{ include "tiered.selector" . | fromYaml | toJson }}
{{- end -}}

{{/* The rights are those of docs/operations.md. A list of the root and the password. */}}
{{- define "tiered.usersAcl" -}}
user default off
user tiered on >{{ index . 1 }} resetchannels ~{{ "{" }}{{ (index . 0).Values.cluster.namespace }}:* +@all -@admin -@dangerous +keys +info +cluster|slots
{{ end -}}

{{- define "tiered.redisConf" -}}
bind * -::*
port 6379
dir /data
aclfile /run/secrets/tiered/users.acl
maxmemory {{ include "tiered.mebibytes" .Values.redis.maxmemory }}mb
# What leaves is decided by Tiered, inside the tenant that owes.
maxmemory-policy noeviction
save ""
appendonly {{ ternary "yes" "no" .Values.redis.persistence.aof }}
{{ end -}}
