// Asks a Prometheus API what Grafana asks it, through the backend of Grafana's own Prometheus data source.
//
// In: one JSON document on standard input, a data source as Grafana keeps it and the calls to make. Out: one JSON
// document on standard output, each call's answer as Grafana's browser side gets it, and what the data source
// logged as a warning or worse: a failed exemplar query is seen nowhere else.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/grafana/grafana-plugin-sdk-go/backend"
	sdklog "github.com/grafana/grafana-plugin-sdk-go/backend/log"
	"github.com/grafana/grafana-plugin-sdk-go/experimental/featuretoggles"
	"github.com/grafana/grafana/pkg/promlib"
)

type scene struct {
	DataSource dataSource `json:"dataSource"`
	Features   []string   `json:"features"` // Grafana's feature toggles
	Calls      []call     `json:"calls"`
}

type dataSource struct {
	URL            string            `json:"url"`
	BasicAuthUser  string            `json:"basicAuthUser"`
	JSONData       json.RawMessage   `json:"jsonData"`
	SecureJSONData map[string]string `json:"secureJsonData"`
}

// One of: the button "Save & test" (neither queries nor a resource), a panel's queries, a call of the editor.
type call struct {
	Queries  []json.RawMessage `json:"queries"`
	From     int64             `json:"from"` // milliseconds, as in Grafana's own requests
	To       int64             `json:"to"`
	Headers  map[string]string `json:"headers"`
	Resource *resource         `json:"resource"`
}

type resource struct {
	Method string `json:"method"`
	Path   string `json:"path"`
	Query  string `json:"query"`
	Body   string `json:"body"`
}

type answer struct {
	Health   *health                    `json:"health,omitempty"`
	Data     *backend.QueryDataResponse `json:"data,omitempty"`
	Resource *resourceAnswer            `json:"resource,omitempty"`
	Error    string                     `json:"error,omitempty"`
}

type health struct {
	Status  string          `json:"status"`
	Message string          `json:"message"`
	Details json.RawMessage `json:"details,omitempty"`
}

type resourceAnswer struct {
	Status      int    `json:"status"`
	ContentType string `json:"contentType"`
	Body        any    `json:"body"` // what the JSON says, or the text
}

func main() {
	var asked scene
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		log.Fatalf("the scene on standard input: %v", err)
	}
	logged := &journal{}
	service := promlib.NewService(nil, logged, nil)
	features := strings.Join(asked.Features, ",")
	config := backend.NewGrafanaCfg(map[string]string{featuretoggles.EnabledFeatures: features})
	ctx := backend.WithGrafanaConfig(context.Background(), config)
	plugin := backend.PluginContext{
		OrgID:                      1,
		PluginID:                   "prometheus",
		GrafanaConfig:              config,
		DataSourceInstanceSettings: asked.DataSource.settings(),
	}
	answers := make([]answer, len(asked.Calls))
	for number, one := range asked.Calls {
		answers[number] = one.ask(ctx, service, plugin)
	}
	out := map[string]any{"answers": answers, "log": logged.lines}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		log.Fatal(err)
	}
}

func (d dataSource) settings() *backend.DataSourceInstanceSettings {
	return &backend.DataSourceInstanceSettings{
		ID:                      1,
		UID:                     "gpuscope",
		Type:                    "prometheus",
		Name:                    "gpuscope",
		URL:                     d.URL,
		BasicAuthEnabled:        d.BasicAuthUser != "",
		BasicAuthUser:           d.BasicAuthUser,
		JSONData:                d.JSONData,
		DecryptedSecureJSONData: d.SecureJSONData,
	}
}

func (c call) ask(ctx context.Context, service *promlib.Service, plugin backend.PluginContext) (got answer) {
	var err error
	switch {
	case c.Resource != nil:
		request := &backend.CallResourceRequest{
			PluginContext: plugin,
			Path:          c.Resource.Path,
			Method:        c.Resource.Method,
			URL:           c.Resource.Path + "?" + c.Resource.Query,
			Body:          []byte(c.Resource.Body),
		}
		err = service.CallResource(ctx, request, backend.CallResourceResponseSenderFunc(got.take))
	case c.Queries != nil:
		var queries []backend.DataQuery
		if queries, err = c.dataQueries(); err == nil {
			request := &backend.QueryDataRequest{PluginContext: plugin, Headers: c.Headers, Queries: queries}
			got.Data, err = service.QueryData(ctx, request)
		}
	default:
		var found *backend.CheckHealthResult
		found, err = service.CheckHealth(ctx, &backend.CheckHealthRequest{PluginContext: plugin})
		if found != nil {
			got.Health = &health{found.Status.String(), found.Message, found.JSONDetails}
		}
	}
	if err != nil {
		got.Error = err.Error()
	}
	return got
}

// As Grafana's query service reads what a panel sends.
func (c call) dataQueries() ([]backend.DataQuery, error) {
	queries := make([]backend.DataQuery, len(c.Queries))
	for number, raw := range c.Queries {
		common := struct {
			RefID         string  `json:"refId"`
			MaxDataPoints int64   `json:"maxDataPoints"`
			IntervalMS    float64 `json:"intervalMs"`
		}{MaxDataPoints: 100, IntervalMS: 1000}
		if err := json.Unmarshal(raw, &common); err != nil {
			return nil, fmt.Errorf("query %d: %w", number, err)
		}
		queries[number] = backend.DataQuery{
			RefID:         common.RefID,
			MaxDataPoints: common.MaxDataPoints,
			Interval:      time.Duration(common.IntervalMS * float64(time.Millisecond)),
			TimeRange:     backend.TimeRange{From: time.UnixMilli(c.From).UTC(), To: time.UnixMilli(c.To).UTC()},
			JSON:          raw,
		}
	}
	return queries, nil
}

func (a *answer) take(sent *backend.CallResourceResponse) error {
	kinds := strings.Join(sent.Headers["Content-Type"], ", ")
	a.Resource = &resourceAnswer{Status: sent.Status, ContentType: kinds}
	if err := json.Unmarshal(sent.Body, &a.Resource.Body); err != nil {
		a.Resource.Body = string(sent.Body)
	}
	return nil
}

// What the data source logs, kept from warnings upwards.
type journal struct {
	mutex sync.Mutex // queries may run in parallel
	lines []string
}

func (j *journal) add(message string, args ...any) {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	j.lines = append(j.lines, strings.TrimSpace(message+" "+fmt.Sprintln(args...)))
}

func (j *journal) Debug(string, ...any)                      {}
func (j *journal) Info(string, ...any)                       {}
func (j *journal) Warn(message string, args ...any)          { j.add("warning: "+message, args...) }
func (j *journal) Error(message string, args ...any)         { j.add("error: "+message, args...) }
func (j *journal) With(...any) sdklog.Logger                 { return j }
func (j *journal) Level() sdklog.Level                       { return sdklog.Warn }
func (j *journal) FromContext(context.Context) sdklog.Logger { return j }
