{{- /* Arguments: list ROOT NODES: those nodes, or all GPU nodes if there are none. */ -}}
{{- define "gpuscope.affinityTo" -}}
{{- if index . 1 }}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        {{- range index . 1 }}
        - matchFields:
            - {key: metadata.name, operator: In, values: [{{ . | quote }}]}
        {{- end }}
{{- else }}
{{- with (include "gpuscope.gpuNodeAffinity" (index . 0) | fromYaml) }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{- /*
The pod that writes a file for the textfile collector.
Arguments: dict root, args, hostPath, resources, nodeName; file and interval of a writer that goes on
Root owns the collector's folder on the node; without capabilities it can write there and nowhere else.
*/ -}}
{{- define "gpuscope.textfilePod" -}}
{{- $root := .root -}}
{{- include "gpuscope.gpuNodePod" $root }}
{{- include "gpuscope.affinityTo" (list $root (compact (list .nodeName))) }}
hostPID: true
automountServiceAccountToken: false
serviceAccountName: {{ include "gpuscope.serviceAccountName" $root }}
terminationGracePeriodSeconds: 10
containers:
  - name: collector
    image: {{ include "gpuscope.image" $root | quote }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    args:
      {{- toYaml .args | nindent 6 }}
    env:
      {{- include "gpuscope.driverEnv" $root | nindent 6 }}
      {{- with $root.Values.agent.extraEnv }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
      {{- if .file }}
      - {name: HEALTH_FILE, value: {{ printf "/textfile/%s" .file | quote }}}
      - {name: HEALTH_FILE_INTERVAL, value: {{ .interval | quote }}}
    # Not ready when the file is old; node exporters go on reading it.
    readinessProbe:
      exec: {command: [python3, -I, -S, /usr/local/lib/gpuscope/healthcheck.py]}
      periodSeconds: 30
      timeoutSeconds: 10
      {{- end }}
    securityContext:
      {{- include "gpuscope.securityContext" (list $root 0) | nindent 6 }}
    resources:
      {{- toYaml .resources | nindent 6 }}
    volumeMounts:
      - {name: tmp, mountPath: /tmp}
      - {name: textfile, mountPath: /textfile}
      {{- include "gpuscope.kubeletMounts" $root | nindent 6 }}
      {{- include "gpuscope.driverMounts" $root | nindent 6 }}
      {{- with $root.Values.agent.extraVolumeMounts }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
volumes:
  - name: tmp
    emptyDir: {}
  - name: textfile
    hostPath: {path: {{ .hostPath | quote }}, type: DirectoryOrCreate}
  {{- include "gpuscope.kubeletVolumes" $root | nindent 2 }}
  {{- include "gpuscope.driverVolumes" $root | nindent 2 }}
  {{- with $root.Values.agent.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}
