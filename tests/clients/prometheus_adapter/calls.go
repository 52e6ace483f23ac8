package main

import (
	"context"
	"sort"
	"time"

	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/metrics/pkg/apis/custom_metrics"

	"sigs.k8s.io/custom-metrics-apiserver/pkg/provider"
	prom "sigs.k8s.io/prometheus-adapter/pkg/client"
)

// A call is one of: list, one object's metric (name), the metric of objects that match (objects), an external
// metric, or a bare question to the server as the adapter's client asks it (query, series).
type call struct {
	List      string   `json:"list"` // custom or external
	Metric    string   `json:"metric"`
	Resource  string   `json:"resource"` // pods unless told
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Objects   string   `json:"objects"`  // a label selector of Kubernetes
	Selector  string   `json:"selector"` // the metric's own selector
	External  bool     `json:"external"`
	Query     string   `json:"query"`
	Series    []string `json:"series"`
	Start     float64  `json:"start"` // seconds; with a step, the query is one over a range
	End       float64  `json:"end"`
	Step      string   `json:"step"`
	Deadline  string   `json:"deadline"` // as the API server gives each request
}

type answer struct {
	Found any    `json:"found,omitempty"`
	Error string `json:"error,omitempty"`
}

type value struct {
	Object string            `json:"object,omitempty"`
	Metric string            `json:"metric"`
	Labels map[string]string `json:"labels,omitempty"`
	Value  string            `json:"value"`
}

func (c call) ask(its adapter) answer {
	ctx := context.Background()
	if patience, err := time.ParseDuration(c.Deadline); err == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	found, err := c.find(ctx, its)
	if err != nil {
		return answer{Error: err.Error()}
	}
	return answer{Found: found}
}

func (c call) find(ctx context.Context, its adapter) (any, error) {
	selector, err := labels.Parse(c.Selector)
	if err != nil {
		return nil, err
	}
	switch {
	case c.List == "custom":
		return sortedNames(its.custom.ListAllMetrics(), provider.CustomMetricInfo.String), nil
	case c.List == "external":
		name := func(info provider.ExternalMetricInfo) string { return info.Metric }
		return sortedNames(its.external.ListAllExternalMetrics(), name), nil
	case c.Query != "":
		return c.query(ctx, its.client)
	case c.Series != nil:
		return c.series(ctx, its.client)
	case c.External:
		return c.external(ctx, its, selector)
	default:
		return c.custom(ctx, its, selector)
	}
}

func sortedNames[Info any](infos []Info, name func(Info) string) []string {
	names := make([]string, len(infos))
	for number, info := range infos {
		names[number] = name(info)
	}
	sort.Strings(names)
	return names
}

func (c call) custom(ctx context.Context, its adapter, selector labels.Selector) (any, error) {
	about := schema.GroupResource{Resource: "pods"}
	if c.Resource != "" {
		about.Resource = c.Resource
	}
	info := provider.CustomMetricInfo{GroupResource: about, Namespaced: c.Namespace != "", Metric: c.Metric}
	if c.Name != "" {
		object := types.NamespacedName{Namespace: c.Namespace, Name: c.Name}
		one, err := its.custom.GetMetricByName(ctx, object, info, selector)
		if err != nil {
			return nil, err
		}
		return toValue(*one), nil
	}
	objects, err := labels.Parse(c.Objects)
	if err != nil {
		return nil, err
	}
	list, err := its.custom.GetMetricBySelector(ctx, c.Namespace, objects, info, selector)
	if err != nil {
		return nil, err
	}
	values := make([]value, len(list.Items))
	for number, item := range list.Items {
		values[number] = toValue(item)
	}
	return values, nil
}

// Without the time, which is the adapter's own.
func toValue(item custom_metrics.MetricValue) value {
	object := item.DescribedObject
	return value{
		Object: object.Kind + " " + object.Namespace + "/" + object.Name,
		Metric: item.Metric.Name,
		Value:  text(item.Value),
	}
}

func text(quantity resource.Quantity) string { return quantity.String() }

func (c call) external(ctx context.Context, its adapter, selector labels.Selector) (any, error) {
	info := provider.ExternalMetricInfo{Metric: c.Metric}
	list, err := its.external.GetExternalMetric(ctx, c.Namespace, selector, info)
	if err != nil {
		return nil, err
	}
	values := make([]value, len(list.Items))
	for number, item := range list.Items {
		values[number] = value{Metric: item.MetricName, Labels: item.MetricLabels, Value: text(item.Value)}
	}
	return values, nil
}

func (c call) query(ctx context.Context, client prom.Client) (any, error) {
	if c.Step == "" {
		return client.Query(ctx, at(c.End), prom.Selector(c.Query))
	}
	step, err := time.ParseDuration(c.Step)
	if err != nil {
		return nil, err
	}
	span := prom.Range{Start: at(c.Start), End: at(c.End), Step: step}
	return client.QueryRange(ctx, span, prom.Selector(c.Query))
}

func (c call) series(ctx context.Context, client prom.Client) (any, error) {
	selectors := make([]prom.Selector, len(c.Series))
	for number, one := range c.Series {
		selectors[number] = prom.Selector(one)
	}
	found, err := client.Series(ctx, model.Interval{Start: at(c.Start), End: at(c.End)}, selectors...)
	if err != nil {
		return nil, err
	}
	texts := make([]string, len(found))
	for number, one := range found {
		texts[number] = one.Name + one.Labels.String()
	}
	sort.Strings(texts)
	return texts, nil
}

func at(seconds float64) model.Time { return model.TimeFromUnixNano(int64(seconds * 1e9)) }
