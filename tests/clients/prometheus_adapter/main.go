// Asks a Prometheus API what prometheus-adapter asks it for Kubernetes' autoscaler, through the adapter's own
// packages: its client, its rules, and its providers of custom and external metrics.
//
// In: one JSON document on standard input, the server, the adapter's configuration, the pods there are, and the
// calls to make. Out: one JSON document on standard output, each call's answer, and every request that failed.
// Only Kubernetes is not real: the REST mapper and the dynamic client are those of the adapter's own tests.
package main

import (
	"context"
	"encoding/json"
	"log"
	"net/http"
	"net/url"
	"os"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakedyn "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/transport"
	"k8s.io/klog/v2"

	cmprovider "sigs.k8s.io/custom-metrics-apiserver/pkg/provider"
	prom "sigs.k8s.io/prometheus-adapter/pkg/client"
	adaptercfg "sigs.k8s.io/prometheus-adapter/pkg/config"
	custom "sigs.k8s.io/prometheus-adapter/pkg/custom-provider"
	external "sigs.k8s.io/prometheus-adapter/pkg/external-provider"
	"sigs.k8s.io/prometheus-adapter/pkg/naming"
)

const relistInterval = 10 * time.Millisecond

type scene struct {
	URL     string      `json:"url"`
	Verb    string      `json:"verb"`    // --prometheus-verb
	Headers http.Header `json:"headers"` // --prometheus-header
	Token   string      `json:"token"`   // what --prometheus-token-file holds
	MaxAge  string      `json:"maxAge"`  // --metrics-max-age
	Config  string      `json:"config"`  // the YAML of --config
	Pods    []pod       `json:"pods"`
	Calls   []call      `json:"calls"`
}

type pod struct {
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Labels    map[string]string `json:"labels"`
}

type adapter struct {
	client   prom.Client
	custom   cmprovider.CustomMetricsProvider
	external cmprovider.ExternalMetricsProvider
}

func main() {
	klog.SetOutput(os.Stderr)
	var asked scene
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		log.Fatalf("the scene on standard input: %v", err)
	}
	var failures sync.Map
	its := asked.adapter(&failures)
	answers := make([]answer, len(asked.Calls))
	for number, one := range asked.Calls {
		answers[number] = one.ask(its)
	}
	out := map[string]any{"answers": answers, "failures": texts(&failures)}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		log.Fatal(err)
	}
}

// As the adapter's makePromClient builds it.
func (s scene) api() prom.GenericAPIClient {
	base, err := url.Parse(s.URL)
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{}
	if s.Token != "" {
		client.Transport = transport.NewBearerAuthRoundTripper(s.Token, http.DefaultTransport)
	}
	return prom.NewGenericAPIClient(client, base, s.Headers)
}

func (s scene) adapter(failures *sync.Map) adapter {
	config, err := adaptercfg.FromYAML([]byte(s.Config))
	if err != nil {
		log.Fatal(err)
	}
	maxAge, err := time.ParseDuration(s.MaxAge)
	if err != nil {
		log.Fatal(err)
	}
	mapper, api := restMapper(), s.api()
	rules, externalRules := namers(config.Rules, mapper), namers(config.ExternalRules, mapper)
	its := adapter{client: prom.NewClientForAPI(&requests{to: api, failures: failures}, s.Verb)}

	asked := &requests{to: api, failures: failures}
	client := prom.NewClientForAPI(asked, s.Verb)
	provider, lister := custom.NewPrometheusProvider(mapper, s.kubernetes(), client, rules, relistInterval, maxAge)
	its.custom = provider
	listOnce(lister, rules, asked)

	asked = &requests{to: api, failures: failures}
	client = prom.NewClientForAPI(asked, s.Verb)
	its.external, lister = external.NewExternalPrometheusProvider(client, externalRules, relistInterval, maxAge)
	listOnce(lister, externalRules, asked)
	return its
}

func namers(rules []adaptercfg.DiscoveryRule, mapper apimeta.RESTMapper) []naming.MetricNamer {
	found, err := naming.NamersFromConfig(rules, mapper)
	if err != nil {
		log.Fatal(err)
	}
	return found
}

// A lister tells nobody when it is done; but it begins its second round only after the first.
func listOnce(lister custom.Runnable, namers []naming.MetricNamer, asked *requests) {
	selectors := map[prom.Selector]bool{}
	for _, namer := range namers {
		selectors[namer.Selector()] = true
	}
	if len(selectors) == 0 {
		return
	}
	stop := make(chan struct{})
	lister.RunUntil(stop)
	for asked.begun.Load() <= int64(len(selectors)) {
		time.Sleep(time.Millisecond)
	}
	close(stop)
}

func restMapper() apimeta.RESTMapper {
	mapper := apimeta.NewDefaultRESTMapper([]schema.GroupVersion{corev1.SchemeGroupVersion})
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), apimeta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Service"), apimeta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), apimeta.RESTScopeRoot)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), apimeta.RESTScopeRoot)
	return mapper
}

func (s scene) kubernetes() *fakedyn.FakeDynamicClient {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		log.Fatal(err)
	}
	objects := make([]runtime.Object, len(s.Pods))
	for number, one := range s.Pods {
		meta := metav1.ObjectMeta{Namespace: one.Namespace, Name: one.Name, Labels: one.Labels}
		objects[number] = &corev1.Pod{ObjectMeta: meta}
	}
	return fakedyn.NewSimpleDynamicClient(scheme, objects...)
}

// What one provider asks the server, and what comes back as an error: the providers only log it.
type requests struct {
	to       prom.GenericAPIClient
	begun    atomic.Int64
	failures *sync.Map // text → true; each once, since listing goes on until it is stopped
}

func (r *requests) Do(ctx context.Context, verb, endpoint string, query url.Values) (prom.APIResponse, error) {
	r.begun.Add(1)
	got, err := r.to.Do(ctx, verb, endpoint, query)
	if err != nil {
		r.failures.Store(endpoint+" "+err.Error(), true)
	}
	return got, err
}

func texts(failures *sync.Map) []string {
	found := []string{}
	for text := range failures.Range {
		found = append(found, text.(string))
	}
	sort.Strings(found)
	return found
}
