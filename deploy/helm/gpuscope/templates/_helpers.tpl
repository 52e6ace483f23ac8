{{- define "gpuscope.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "gpuscope.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 48 | trimSuffix "-" -}}
{{- else if contains (include "gpuscope.name" .) .Release.Name -}}
{{- .Release.Name | trunc 48 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "gpuscope.name" .) | trunc 48 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Arguments: list ROOT COMPONENT */ -}}
{{- define "gpuscope.selectorLabels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "gpuscope.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "gpuscope.labels" -}}
{{- $root := index . 0 -}}
{{ include "gpuscope.selectorLabels" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end -}}

{{- define "gpuscope.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "gpuscope.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "gpuscope.fullname" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end -}}

{{- /* What every pod on a GPU node has: where it runs, and how it reaches the driver. */ -}}
{{- define "gpuscope.gpuNodePod" -}}
{{- if .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml .Values.image.pullSecrets | nindent 2 }}
{{- end }}
{{- if and (eq .Values.driver.access "runtime") .Values.driver.runtimeClassName }}
runtimeClassName: {{ .Values.driver.runtimeClassName }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "gpuscope.gpuNodeAffinity" -}}
{{- if not .Values.nodeSelector }}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      {{- range .Values.gpuNodeLabels }}
      {{- $parts := splitn "=" 2 . }}
      - matchExpressions:
          - {key: {{ $parts._0 | quote }}, operator: In, values: [{{ $parts._1 | quote }}]}
      {{- end }}
{{- end }}
{{- end -}}

{{- define "gpuscope.driverEnv" -}}
- {name: NVIDIA_VISIBLE_DEVICES, value: all}
- {name: NVIDIA_DRIVER_CAPABILITIES, value: utility}
- {name: NVIDIA_MIG_MONITOR_DEVICES, value: all}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: HOST_IP
  valueFrom: {fieldRef: {fieldPath: status.hostIP}}
{{- $libraries := list }}
{{- if eq .Values.driver.access "hostPath" }}
{{- $libraries = append $libraries "/opt/driver/lib" }}
{{- end }}
{{- if include "gpuscope.profilingEnabled" . }}
{{- $libraries = append $libraries "/opt/dcgm" }}
{{- end }}
{{- with $libraries }}
- {name: LD_LIBRARY_PATH, value: {{ join ":" . | quote }}}
{{- end }}
{{- end -}}

{{- define "gpuscope.driverMounts" -}}
{{- if eq .Values.driver.access "hostPath" }}
- {name: driver-library, mountPath: /opt/driver/lib, readOnly: true}
{{- end }}
{{- end -}}

{{- define "gpuscope.driverVolumes" -}}
{{- if eq .Values.driver.access "hostPath" }}
- name: driver-library
  hostPath: {path: {{ .Values.driver.libraryPath | quote }}, type: Directory}
{{- end }}
{{- end -}}

{{- /*
The agent's metric families. A node exporter is part of nearly every cluster, and node_* twice would double every
panel: the agent has them only where the chart's own server is the one that scrapes it. With --as among the extra
arguments the exporter that is replaced decides.
*/ -}}
{{- define "gpuscope.agentFamilies" -}}
{{- $isStandIn := false -}}
{{- range .Values.agent.extraArgs -}}
{{- if hasPrefix "--as" . -}}{{- $isStandIn = true -}}{{- end -}}
{{- end -}}
{{- $isScrapedByPrometheus := or (include "gpuscope.wantsServiceMonitor" .) (include "gpuscope.wantsPodMonitor" .) -}}
{{- if .Values.agent.families -}}{{ join "," .Values.agent.families }}
{{- else if $isStandIn -}}
{{- else if and .Values.server.enabled (not .Values.server.store) (not $isScrapedByPrometheus) -}}native,host
{{- else -}}native
{{- end -}}
{{- end -}}

{{- define "gpuscope.wantsServiceMonitor" -}}
{{- if and .Values.agent.enabled .Values.service.enabled -}}
{{- include "gpuscope.wantsCrd" (list . .Values.serviceMonitor.enabled "monitoring.coreos.com/v1/ServiceMonitor") -}}
{{- end -}}
{{- end -}}

{{- define "gpuscope.wantsPodMonitor" -}}
{{- if .Values.agent.enabled -}}
{{- include "gpuscope.wantsCrd" (list . .Values.podMonitor.enabled "monitoring.coreos.com/v1/PodMonitor") -}}
{{- end -}}
{{- end -}}

{{- /* What `helm test` asks: component and address of each. */ -}}
{{- define "gpuscope.testedServices" -}}
{{- $fullname := include "gpuscope.fullname" . -}}
{{- if and .Values.agent.enabled .Values.service.enabled }}
agent: {{ printf "%s-agent.%s.svc:%v" $fullname .Release.Namespace .Values.agent.port }}
{{- end }}
{{- if .Values.server.enabled }}
server: {{ printf "%s-server.%s.svc:%v" $fullname .Release.Namespace .Values.server.port }}
{{- end }}
{{- end -}}

{{- /* The kubelet's pods-api folder: only it has the labels of pods, and the kubelet makes it from 1.37 on. */ -}}
{{- define "gpuscope.wantsPodsApi" -}}
{{- $value := .Values.kubelet.podsApi | toString -}}
{{- $isThere := semverCompare ">=1.37.0-0" .Capabilities.KubeVersion.Version -}}
{{- if eq $value "true" -}}true
{{- else if and (eq $value "auto") .Values.agent.exportedPodLabels $isThere -}}true
{{- end -}}
{{- end -}}

{{- /*
Folders of the kubelet. Folders and not sockets: a restarted kubelet creates new sockets. Of the logs only the folder
of links is mounted, whose text names pods and containers: no log can be read through it. `Directory`, so that a wrong
path is an event of the pod; it is never made on the node.
*/ -}}
{{- define "gpuscope.kubeletMounts" -}}
- {name: pod-resources, mountPath: /var/lib/kubelet/pod-resources, readOnly: true}
{{- if include "gpuscope.wantsPodsApi" . }}
- {name: pods-api, mountPath: /var/lib/kubelet/pods-api, readOnly: true}
{{- end }}
- {name: container-logs, mountPath: /var/log/containers, readOnly: true}
{{- end -}}

{{- define "gpuscope.kubeletVolumes" -}}
- name: pod-resources
  hostPath: {path: {{ .Values.kubelet.rootDir }}/pod-resources, type: Directory}
{{- if include "gpuscope.wantsPodsApi" . }}
- name: pods-api
  hostPath: {path: {{ .Values.kubelet.rootDir }}/pods-api, type: Directory}
{{- end }}
- name: container-logs
  hostPath: {path: /var/log/containers, type: Directory}
{{- end -}}

{{- /* Arguments: list ROOT UID. Root only where the kubelet's socket or a folder of the node needs it. */ -}}
{{- define "gpuscope.securityContext" -}}
{{- $root := index . 0 -}}
runAsUser: {{ index . 1 }}
runAsGroup: {{ index . 1 }}
runAsNonRoot: {{ ne (index . 1 | int) 0 }}
readOnlyRootFilesystem: true
{{- if and (eq $root.Values.driver.access "hostPath") $root.Values.driver.privileged }}
privileged: true
{{- else }}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- end -}}

{{- define "gpuscope.hasWebConfig" -}}
{{- if or .Values.web.tlsSecret .Values.web.basicAuthUsers -}}true{{- end -}}
{{- end -}}

{{- define "gpuscope.scheme" -}}
{{- if .Values.web.tlsSecret -}}https{{- else -}}http{{- end -}}
{{- end -}}

{{- define "gpuscope.webVolumes" -}}
{{- if include "gpuscope.hasWebConfig" . }}
- name: web-config
  secret: {secretName: {{ include "gpuscope.fullname" . }}-web, defaultMode: 0440}
{{- end }}
{{- with .Values.web.tlsSecret }}
- name: web-tls
  secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{- define "gpuscope.webMounts" -}}
{{- if include "gpuscope.hasWebConfig" . }}
- {name: web-config, mountPath: /etc/gpuscope/web, readOnly: true}
{{- end }}
{{- if .Values.web.tlsSecret }}
- {name: web-tls, mountPath: /etc/gpuscope/tls, readOnly: true}
{{- end }}
{{- end -}}

{{- /* Arguments: list ROOT PATH. With a login the probe is a connection only: it cannot hold a password. */ -}}
{{- define "gpuscope.probe" -}}
{{- $root := index . 0 -}}
{{- if $root.Values.web.basicAuthUsers }}
tcpSocket: {port: {{ index . 2 }}}
{{- else }}
httpGet: {path: {{ index . 1 }}, port: {{ index . 2 }}, scheme: {{ include "gpuscope.scheme" $root | upper }}}
{{- end }}
{{- end -}}

{{- /* Arguments: list ROOT VALUE CRD. true, false, or auto: whether the cluster has the CRD. */ -}}
{{- define "gpuscope.wantsCrd" -}}
{{- $root := index . 0 -}}
{{- $value := index . 1 | toString -}}
{{- if eq $value "true" -}}true
{{- else if and (eq $value "auto") ($root.Capabilities.APIVersions.Has (index . 2)) -}}true
{{- end -}}
{{- end -}}

{{- define "gpuscope.profilingEnabled" -}}
{{- if ne .Values.profiling.dcgm "none" -}}true{{- end -}}
{{- end -}}

{{- /* sessions: true while the collector of GPU sessions is a DaemonSet. */ -}}
{{- define "gpuscope.sessionsAsDaemonSet" -}}
{{- if and (index .Values "gpu-session-monitoring").enabled .Values.collection.interval -}}true{{- end -}}
{{- end -}}
