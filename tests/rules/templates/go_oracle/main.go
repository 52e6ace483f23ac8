// Expands templates with Prometheus' and Alertmanager's own code.
//
// Standard input and output are one JSON document per line: a case in, a result out. The result has the
// expanded text or the error.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"time"

	amtemplate "github.com/prometheus/alertmanager/template"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/template"
)

type querySample struct {
	Labels map[string]string `json:"labels"`
	Value  string            `json:"value"`
}

type testCase struct {
	Engine         string                   `json:"engine"` // prometheus, text or html
	Template       string                   `json:"template"`
	Labels         map[string]string        `json:"labels"`
	ExternalLabels map[string]string        `json:"external_labels"`
	ExternalURL    string                   `json:"external_url"`
	Value          string                   `json:"value"`
	Milliseconds   int64                    `json:"milliseconds"`
	Queries        map[string][]querySample `json:"queries"`
	Data           *amtemplate.Data         `json:"data"`
}

type result struct {
	Output string `json:"output"`
	Error  string `json:"error"`
}

const prelude = "{{$labels := .Labels}}{{$externalLabels := .ExternalLabels}}" +
	"{{$externalURL := .ExternalURL}}{{$value := .Value}}"

func expandAlert(c testCase) (string, error) {
	value, err := strconv.ParseFloat(c.Value, 64)
	if err != nil {
		return "", err
	}
	external, err := url.Parse(c.ExternalURL)
	if err != nil {
		return "", err
	}
	query := func(_ context.Context, q string, _ time.Time) (promql.Vector, error) {
		samples, ok := c.Queries[q]
		if !ok {
			return nil, errors.New("no such query")
		}
		vector := promql.Vector{}
		for _, s := range samples {
			number, err := strconv.ParseFloat(s.Value, 64)
			if err != nil {
				return nil, err
			}
			vector = append(vector, promql.Sample{F: number, Metric: labels.FromMap(s.Labels)})
		}
		return vector, nil
	}
	data := template.AlertTemplateData(c.Labels, c.ExternalLabels, c.ExternalURL, promql.Sample{F: value})
	expander := template.NewTemplateExpander(
		context.Background(), prelude+c.Template, "__alert_Test", data,
		model.Time(c.Milliseconds), query, external, nil,
	)
	return expander.Expand()
}

func expand(c testCase) (output string, err error) {
	// As Prometheus does, a panic of a function is the error of its template.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	if c.Engine == "prometheus" {
		return expandAlert(c)
	}
	templates, err := amtemplate.FromGlobs(nil)
	if err != nil {
		return "", err
	}
	if c.Engine == "html" {
		return templates.ExecuteHTMLString(c.Template, c.Data)
	}
	return templates.ExecuteTextString(c.Template, c.Data)
}

func main() {
	in := bufio.NewReader(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var c testCase
		if err := json.Unmarshal(line, &c); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		text, err := expand(c)
		r := result{Output: text}
		if err != nil {
			r = result{Error: err.Error()}
		}
		if err := out.Encode(r); err != nil {
			os.Exit(1)
		}
	}
}
