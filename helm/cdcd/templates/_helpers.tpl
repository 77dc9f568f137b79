{{- define "cdcd.name" -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) -}}
{{- $full | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- define "cdcd.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "cdcd.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "cdcd.selector" . }}
{{- end }}

{{- define "cdcd.image" -}}
{{- $image := .image -}}
{{- with $image.digest }}{{ $image.repository }}@{{ . }}{{ else }}{{ $image.repository }}:{{ $image.tag | default .chart.AppVersion }}{{ end }}
{{- end }}

{{- define "cdcd.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "cdcd.name" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end }}

{{- define "cdcd.spool" -}}
{{ dig "spool" "directory" "" .Values.config | default "/var/spool/cdcd" }}
{{- end }}

{{/* What every pod here has in common. */}}
{{- define "cdcd.pod" -}}
serviceAccountName: {{ include "cdcd.serviceAccount" . }}
automountServiceAccountToken: false
# A Service called cdcd would set CDCD_PORT and the like.
enableServiceLinks: false
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* Variables of a container that runs cdcd. */}}
{{- define "cdcd.environment" -}}
{{- with .Values.env }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Resources, rights and mounts of a container that runs cdcd. */}}
{{- define "cdcd.limits" -}}
resources:
  {{- toYaml .Values.resources | nindent 2 }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
volumeMounts:
  {{- include "cdcd.mounts" . | nindent 2 }}
{{- end }}

{{- define "cdcd.mounts" -}}
- {name: config, mountPath: /etc/cdcd, readOnly: true}
- {name: spool, mountPath: {{ include "cdcd.spool" . }}}
{{- range $index, $name := .Values.secrets }}
- {name: secret-{{ $index }}, mountPath: /run/secrets/{{ $name }}, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* libpq takes a client's key of root's only if nobody but root and the group may read it: 0440. */}}
{{- define "cdcd.secretVolumes" -}}
{{- range $index, $name := .Values.secrets }}
- name: secret-{{ $index }}
  secret: {secretName: {{ $name }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{/* Of a probe: HTTPS where the daemon has a certificate. */}}
{{- define "cdcd.httpScheme" -}}
{{- if dig "http" "certificate_file" "" .Values.config }}, scheme: HTTPS{{ end }}
{{- end }}
