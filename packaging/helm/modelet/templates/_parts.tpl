{{- define "modelet.labels" -}}
app.kubernetes.io/name: modelet
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "modelet.pod" -}}
runAsNonRoot: true
runAsUser: 10570
runAsGroup: 10570
fsGroup: 10570
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- define "modelet.container" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
{{- define "modelet.claim" -}}
accessModes: [ReadWriteOnce]
{{- with .storageClass }}
storageClassName: {{ . }}
{{- end }}
resources: {requests: {storage: {{ .storage }}}}
{{- end }}
