# Images with the paths, users and folders of prom/prometheus, prom/alertmanager and prom/node-exporter, made of
# the programs that tools/get-engines downloads (build context `engines`): public registries may be out of reach.
ARG BASE
FROM ${BASE} AS common
USER 65534

FROM common AS prometheus
COPY --from=engines bin/prometheus bin/promtool /bin/
COPY --chown=65534:65534 empty /prometheus
ENTRYPOINT ["/bin/prometheus"]

FROM common AS alertmanager
# Debian's build reads its templates from a path relative to the working directory.
COPY --from=engines share /engines/share
COPY --from=engines bin/alertmanager /bin/
COPY --chown=65534:65534 empty /alertmanager
WORKDIR /engines
ENTRYPOINT ["/bin/alertmanager"]

FROM common AS node-exporter
COPY --from=engines bin/node_exporter /bin/
ENTRYPOINT ["/bin/node_exporter"]
