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
Arguments: dict root, file, interval: how often the file is written; empty: unknown.
It removes the file when the pod ends and when the file is old. The node's folder belongs to root; without capabilities
it can write there and nowhere else. It stays for 12 s at the end, because a run of a CronJob may end later.
*/ -}}
{{- define "gpuscope.cleanupContainer" -}}
- name: cleanup
  image: {{ include "gpuscope.image" .root | quote }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  command: [python3, -I, -S, /usr/local/lib/gpuscope/remove_textfile.py]
  env:
    - {name: TEXTFILE, value: {{ printf "/textfile/%s" .file | quote }}}
    - {name: WRITE_INTERVAL, value: {{ .interval | quote }}}
    - {name: LINGER_SECONDS, value: "12"}
  securityContext:
    runAsUser: 0
    runAsGroup: 0
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL]}
    seccompProfile: {type: RuntimeDefault}
  resources:
    requests: {cpu: 1m, memory: 16Mi}
    limits: {memory: 32Mi}
  volumeMounts:
    - {name: textfile, mountPath: /textfile}
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
terminationGracePeriodSeconds: {{ ternary 20 10 (not (empty .file)) }}
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
  {{- if .file }}
  # The collector removes its file when it ends; not if it is killed, or cannot start again.
  {{- include "gpuscope.cleanupContainer" . | nindent 2 }}
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
