"""Fragments of `alertmanager.yml`, right and wrong, each in a file of its own.

`FRAGMENTS` has them by the place where they stand; `whole_file` puts one there. `DIFFERENCES` names those that
Alertmanager and gpuscope judge differently, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_BELOW = "route: {{receiver: a}}\nreceivers: [{{name: a}}]\n"
PLACES: Final = {
    "file": "{}",
    "top": _BELOW + "{}",
    "root route": "route: {{receiver: a, {}}}\nreceivers: [{{name: a}}]\ntime_intervals: [{{name: t}}]",
    "route": "route: {{receiver: a, routes: [{{{}}}]}}\nreceivers: [{{name: a}}]\n"
             "time_intervals: [{{name: t}}]",
    "routes": "route: {{receiver: a, routes: {}}}\nreceivers: [{{name: a}}]",
    "matchers": "route: {{receiver: a, routes: [{{matchers: {}}}]}}\nreceivers: [{{name: a}}]",
    "inhibit rule": _BELOW + "inhibit_rules: [{{{}}}]",
    "time interval": _BELOW + "time_intervals: [{{name: t, time_intervals: [{{{}}}]}}]",
    "receivers": "route: {{receiver: a}}\nreceivers: [{{name: a}}, {}]",
    "global": "global: {{{}}}\nroute: {{receiver: a}}\nreceivers: [{{name: a}}]",
    "webhook": "route: {{receiver: a}}\nreceivers: [{{name: a, webhook_configs: [{{{}}}]}}]",
    "http": "route: {{receiver: a}}\nreceivers:\n"
            "- {{name: a, webhook_configs: [{{url: 'http://h/', http_config: {{{}}}}}]}}",
    "e-mail": "global: {{smtp_smarthost: 'm:25', smtp_from: x@y}}\nroute: {{receiver: a}}\n"
              "receivers: [{{name: a, email_configs: [{{{}}}]}}]",
    "slack": "global: {{slack_api_url: 'http://s/'}}\nroute: {{receiver: a}}\n"
             "receivers: [{{name: a, slack_configs: [{{{}}}]}}]",
    "slack alone": "route: {{receiver: a}}\nreceivers: [{{name: a, slack_configs: [{{{}}}]}}]",
    "slack global": "global: {{{}}}\nroute: {{receiver: a}}\nreceivers: [{{name: a, slack_configs: [{{}}]}}]",
    "slack app": "global: {{slack_app_token: t}}\nroute: {{receiver: a}}\n"
                 "receivers: [{{name: a, slack_configs: [{{{}}}]}}]",
    "msteamsv2": "route: {{receiver: a}}\nreceivers: [{{name: a, msteamsv2_configs: [{{{}}}]}}]",
    "discord": "route: {{receiver: a}}\nreceivers: [{{name: a, discord_configs: [{{{}}}]}}]",
    "telegram": "route: {{receiver: a}}\nreceivers: [{{name: a, telegram_configs: [{{{}}}]}}]",
    "pagerduty": "route: {{receiver: a}}\nreceivers: [{{name: a, pagerduty_configs: [{{{}}}]}}]",
    "opsgenie": "route: {{receiver: a}}\nreceivers: [{{name: a, opsgenie_configs: [{{{}}}]}}]",
    "opsgenie global": "global: {{{}}}\nroute: {{receiver: a}}\n"
                       "receivers: [{{name: a, opsgenie_configs: [{{}}]}}]",
    "webex": "route: {{receiver: a}}\nreceivers: [{{name: a, webex_configs: [{{{}}}]}}]",
    "pushover": "route: {{receiver: a}}\nreceivers: [{{name: a, pushover_configs: [{{{}}}]}}]",
    "victorops": "route: {{receiver: a}}\nreceivers: [{{name: a, victorops_configs: [{{{}}}]}}]",
    "victorops global": "global: {{{}}}\nroute: {{receiver: a}}\n"
                        "receivers: [{{name: a, victorops_configs: [{{routing_key: r}}]}}]",
    "mattermost": "route: {{receiver: a}}\nreceivers: [{{name: a, mattermost_configs: [{{{}}}]}}]",
    "mattermost global": "global: {{{}}}\nroute: {{receiver: a}}\n"
                         "receivers: [{{name: a, mattermost_configs: [{{}}]}}]",
    "rocketchat": "route: {{receiver: a}}\nreceivers: [{{name: a, rocketchat_configs: [{{{}}}]}}]",
    "rocketchat global": "global: {{{}}}\nroute: {{receiver: a}}\n"
                         "receivers: [{{name: a, rocketchat_configs: [{{}}]}}]",
    "msteams": "route: {{receiver: a}}\nreceivers: [{{name: a, msteams_configs: [{{{}}}]}}]",
    "wechat": "route: {{receiver: a}}\nreceivers: [{{name: a, wechat_configs: [{{{}}}]}}]",
    "wechat global": "global: {{{}}}\nroute: {{receiver: a}}\nreceivers: [{{name: a, wechat_configs: [{{}}]}}]",
    "jira": "route: {{receiver: a}}\nreceivers: [{{name: a, jira_configs: [{{{}}}]}}]",
    "jira global": "global: {{{}}}\nroute: {{receiver: a}}\n"
                   "receivers: [{{name: a, jira_configs: [{{project: p, issue_type: t}}]}}]",
    "sns": "route: {{receiver: a}}\nreceivers: [{{name: a, sns_configs: [{{{}}}]}}]",
    "incidentio": "route: {{receiver: a}}\nreceivers: [{{name: a, incidentio_configs: [{{{}}}]}}]",
}  # fmt: skip

DURATIONS = (
    "0s", "1s", "5", "'5'", "0", "1.5s", "-1s", "1d", "1h30m", "30m1h", "''", "null", "1m 30s", "500ms",
    "1000y",
)  # fmt: skip
RESERVED_HEADERS = (
    "Accept-Encoding", "Authorization", "Connection", "Content-Encoding", "Content-Length", "Content-Type",
    "Host", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "User-Agent", "Www-Authenticate",
    "X-Amz-Content-Sha256", "X-Amz-Date", "X-Amz-Security-Token", "X-Prometheus-Remote-Read-Version",
    "X-Prometheus-Remote-Write-Version", "X-Prometheus-Scrape-Timeout-Seconds", "content-type",
)  # fmt: skip
OTHER_HEADERS = ("Accept", "Cookie", "X-Forwarded-For", "Referer", "Te", "Upgrade", "Date")
_APP_URL = "slack_api_url: 'https://slack.com/api/chat.postMessage'"
_THREADS = "to: a@b, threading: {enabled: true, thread_by_date: daily}"
_BUTTON = "type: button, text: t"

FRAGMENTS: Final[dict[str, tuple[str, ...]]] = {
    "file": (
        "", "null", "[]", "x", "receivers: [{name: a}]", "route:\nreceivers: [{name: a}]",
        "route: {receiver: a}",
        "route: {}\nreceivers: [{name: a}]", "global:\nroute: {receiver: a}\nreceivers: [{name: a}]",
        "route: {receiver: a}\nreceivers: [{name: a}]\n---\nfoo: 1",
        "route: {receiver: a}\nreceivers: [{name: a}]\nroute: {receiver: a}",
        "route: {receiver: b}\nreceivers: [{name: a}]", "route: {receiver: 5}\nreceivers: [{name: 5}]",
    ),
    "top": (
        "", "foo: 1", "templates:", "templates: ['/nonexistent/*.tmpl']", "templates: x", "templates: ['[']",
        "templates: ['[a].tmpl']", "templates: ['[a.tmpl']", "templates: ['a].tmpl']",
        "tracing: {endpoint: 'localhost:4317'}", "tracing: {foo: 1}", "tracing: {}",
        "time_intervals: [{name: t}, {name: t}]", "mute_time_intervals: [{name: t}]", "time_intervals: [null]",
        "time_intervals: [{name: t}]\nmute_time_intervals: [{name: t}]",
        "time_intervals: [{time_intervals: []}]",
        "mute_time_intervals: [{time_intervals: []}]", "inhibit_rules: [null]",
        "inhibit_rules: [{name: n}, {name: n}]",
    ),
    "root route": (
        "matchers: [a=b]", "matchers: []", "match: {a: b}", "match: {}", "match_re: {a: b}", "continue: true",
        "continue: false", "mute_time_intervals: [t]", "active_time_intervals: [t]", "mute_time_intervals: []",
        "group_by: [x, y]", "group_by: [x, x]", "group_by: ['...']", "group_by: ['...', '...']",
        "group_by: ['...', x]", "group_by: ['gpu-id']", "group_by: ['']", "group_by: x", "group_by: ",
        "group_by: []", "group_by: [null]", "group_by: [5]", "foo: b",
        *(f"{key}: {one}" for key in ("group_wait", "group_interval", "repeat_interval") for one in DURATIONS),
    ),
    "route": (
        "", "receiver: a", "receiver: b", "matchers: [a=b]", "mute_time_intervals: [t]",
        "mute_time_intervals: [u]",
        "active_time_intervals: [t]", "active_time_intervals: [u]", "continue: yes", "continue: 'true'",
        "continue: x", "continue: null", "match: {a: b}", "match: {gpu-id: b}", "match: {a: }", "match: {a: 5}",
        "match: {'': b}", "match: [a]", "match_re: {a: b.*}", "match_re: {a: '('}", "match_re: {a: }",
        "match_re: {gpu-id: b}", "match_re: {a: ''}",
    ),
    "routes": ("", "[null]", "[]", "x"),
    "matchers": (
        "[a=b]", "a=b", "'{a=\"b\",c=~\"d\"}'", "['{a=b}']", "['{a=\"b\",c=~\"d\"}']", "['a=b,c=d']", "['a']",
        "['=b']", "['a=']", "['a=~\"(\"']", "['a=~[']", "['a==b']", "['a=!b']", "['a!~b']", "['a = \"x y\"']",
        "['a = x y']", "['gpu-id=b']", "['\"gpu id\"=b']", "['ä=ö']", "['a=\"\\\\x\"']", "['a=\"b']", "[null]",
        "[5]", "null", "''", "['']", "'{}'", "['{}']", "['a=b,']", "['a=b,,c=d']", "[',a=b']", "{a: b}",
        "['a=~\"\"']", "['a=`b`']", "['a=b c=d']", "['0a=b']", "['a.b=c']", "['a=~b*+']", "['a=~(?i)b']",
        "['a=~(?=b)']", "['a=b{']", "['{a=b']", "['a=b}']", "['a=b\\\"']", "['a= ']",
    ),
    "inhibit rule": (
        "source_matchers: [a=b], target_matchers: [c=d], equal: [e]", "", "source_match: {a: b}",
        "target_match_re: {c: d}", "source_match_re: {a: }", "target_match_re: {a: }", "source_match: {a: }",
        "equal: e", "equal: [gpu-id]", "equal: ['']", "equal: [e, e]", "equal: [5]", "equal: ",
        "name: n, source_matchers: [a=b]", "foo: n", "source_match: {gpu-id: b}", "target_match: {gpu-id: b}",
    ),
    "time interval": (
        "", "times: [{start_time: '09:00', end_time: '17:00'}]",
        "times: [{start_time: '09:00', end_time: '24:00'}]",
        "times: [{start_time: '24:00', end_time: '24:00'}]",
        "times: [{start_time: '17:00', end_time: '09:00'}]",
        "times: [{start_time: '09:00', end_time: '09:00'}]", "times: [{start_time: '9:00', end_time: '17:00'}]",
        "times: [{start_time: '09:00'}]", "times: [{end_time: '09:00'}]", "times: [{}]", "times: [null]",
        "times: ",
        "times: [{start_time: '09:60', end_time: '17:00'}]",
        "times: [{start_time: '25:00', end_time: '26:00'}]",
        "times: [{start_time: 9:00, end_time: 17:00}]",
        "weekdays: [monday]", "weekdays: ['Monday:Friday']", "weekdays: ['friday:monday']", "weekdays: [mon]",
        "weekdays: ['mon:fri']", "weekdays: ['']", "weekdays: ['monday:']", "weekdays: monday", "weekdays: [1]",
        "weekdays: ['sunday:saturday']", "weekdays: ['saturday:sunday']", "weekdays: [' monday']",
        "weekdays: ['monday : friday']", "weekdays: []", "times: []", "days_of_month: ['1: 5']",
        "months: ['may: june']", "years: [' 2020']", "months: ['+5']", "days_of_month: ['+5']",
        "days_of_month: [1]", "days_of_month: ['1:5']", "days_of_month: ['-1']", "days_of_month: ['-5:-1']",
        "days_of_month: ['1:-1']", "days_of_month: ['5:1']", "days_of_month: [0]", "days_of_month: [32]",
        "days_of_month: ['-32']", "days_of_month: ['-1:1']", "days_of_month: ['-1:-5']",
        "days_of_month: ['31:-31']", "days_of_month: ['20:-20']", "days_of_month: [x]",
        "days_of_month: ['1:40']",
        "days_of_month: ['28:-28']", "days_of_month: ['-10:5']",
        "months: [january]", "months: [1]", "months: ['1:3']", "months: ['may:august']", "months: ['12:1']",
        "months: [13]", "months: [0]", "months: [jan]", "months: [May]", "months: ['january:3']",
        "years: [2020]", "years: ['2020:2022']", "years: ['2022:2020']", "years: [-1]", "years: [x]",
        "years: [0]",
        "location: UTC", "location: Europe/Berlin", "location: Local", "location: Nowhere/X", "location: ''",
        "location: null", "location: '../etc'", "location: /etc/localtime", "foo: 1",
    ),
    "receivers": (
        "{name: b}", "{name: a}", "{}", "null", "{name: b, foo: 1}", "{name: b, webhook_configs: []}",
        "{name: b, webhook_configs: }", "{name: b, webhook_configs: [null]}",
        "{name: b, slack_configs: [null]}",
        "{name: b, labels: {team: x}}", "{name: b, labels: {name: c}}", "{name: b, labels: {name: b}}",
    ),
    "global": (
        "resolve_timeout: 5m", "resolve_timeout: 0s", "resolve_timeout: x", "resolve_timeout: null",
        "smtp_smarthost: m", "smtp_smarthost: ''", "smtp_require_tls: false", "smtp_require_tls: x",
        "smtp_auth_password: a, smtp_auth_password_file: b", "smtp_auth_secret: a, smtp_auth_secret_file: b",
        "smtp_hello: ''", "smtp_tls_config: {foo: 1}", "smtp_tls_config: {insecure_skip_verify: true}",
        "smtp_force_implicit_tls: true", "smtp_auth_identity: i", "smtp_from: 5", "slack_api_url: ''",
        "pagerduty_url: x", "pagerduty_url: ''", "telegram_api_url: x", "opsgenie_api_url: x",
        "opsgenie_api_key: a, opsgenie_api_key_file: b", "victorops_api_key: a, victorops_api_key_file: b",
        "wechat_api_secret: a, wechat_api_secret_file: b", "rocketchat_token: a, rocketchat_token_file: b",
        "rocketchat_token_id: a, rocketchat_token_id_file: b", "jira_api_url: 'http://j/'",
        "mattermost_webhook_url: 'http://m/', mattermost_webhook_url_file: b", "webex_api_url: 'http://j/'",
        "wechat_api_corp_id: x", "foo: 1", "http_config: {foo: 1}", "http_config: {}", "http_config: null",
        "http_config: {tls_config: {ca_file: /nonexistent}}", "slack_app_token: a, slack_app_token_file: b",
        "telegram_bot_token: t, telegram_bot_token_file: /x",
    ),
    "webhook": (
        "url: 'http://h/'", "send_resolved: true", "url: 'http://h/', url_file: /x", "url_file: /x",
        "url: 'ftp://h/'", "url: h", "url: 'http://'", "url: ''", "url: 'http://h/{{ .GroupKey }}'",
        "url: 'http://h/{{ .GroupKey '", "url: 'http://h h/'", "url: 'http://h:99999/'", "url: 'http://h:x/'",
        *(f"url: 'http://h/', {more}" for more in (
            "max_alerts: 5", "max_alerts: -1", "max_alerts: x", "max_alerts: 1.5", "max_alerts: '5'",
            "timeout: 5s",
            "timeout: 0s", "timeout: x", "payload: {a: '{{ .Status }}'}", "payload: {a: '{{ .Status '}",
            "payload: [1]", "payload: x", "payload: null", "foo: 1", "send_resolved: x", "send_resolved: null",
        )),
    ),
    "http": (
        "", "basic_auth: {username: u, password: p}",
        "basic_auth: {username: u, password: p, password_file: f}",
        "basic_auth: {username: u, username_file: f}", "basic_auth: {password: p}",
        "authorization: {credentials: t}",
        "authorization: {type: Basic, credentials: t}", "authorization: {type: Digest, credentials: t}",
        "authorization: {type: ''}", "authorization: {credentials: t, credentials_file: f}", "bearer_token: t",
        "bearer_token: t, bearer_token_file: f", "bearer_token: t, basic_auth: {username: u}",
        "authorization: {credentials: t}, basic_auth: {username: u}",
        "tls_config: {insecure_skip_verify: true}",
        "tls_config: {min_version: TLS12}", "tls_config: {min_version: TLS99}",
        "tls_config: {min_version: TLS13, max_version: TLS12}", "tls_config: {cert_file: c}",
        "tls_config: {key_file: c}", "tls_config: {foo: c}", "tls_config: {server_name: x}",
        "follow_redirects: false", "enable_http2: false", "foo: 1", "no_proxy: x",
        "proxy_from_environment: false",
        "proxy_url: ''", "proxy_url: 'http://p/'", "proxy_url: 'http://p/', no_proxy: 'a,10.0.0.0/8'",
        "proxy_url: 'http://p/', proxy_from_environment: true", "proxy_from_environment: true",
        "proxy_from_environment: true, no_proxy: x", "proxy_connect_header: {X-A: [b]}",
        "proxy_url: 'socks5://p:1080', proxy_connect_header: {X-A: [b]}", "proxy_url: 'https://p/'",
        "oauth2: {client_id: c, client_secret: s, token_url: 'http://t/'}",
        "oauth2: {client_id: c, client_secret_file: f, token_url: 'http://t/', scopes: [a, b]}",
        "oauth2: {client_id: c, client_secret: s, client_secret_file: f, token_url: 'http://t/'}",
        "oauth2: {client_id: c, client_secret: s, token_url: 'http://t/', endpoint_params: {a: b}, foo: 1}",
        "oauth2: {client_id: c, client_secret: s, token_url: 'http://t/', grant_type: client_credentials}",
        "oauth2: {client_secret: s, token_url: 'http://t/'}", "oauth2: {client_id: c, client_secret: s}",
        "oauth2: {client_id: c, client_secret: s, token_url: 'http://t/'}, basic_auth: {username: u}",
        "oauth2: {client_id: c, client_secret: s, token_url: 'http://t/', proxy_url: 'http://p/'}",
        "oauth2: {client_id: c, client_secret: s, token_url: 'http://t/', tls_config: {server_name: x}}",
        "http_headers: {X-A: {values: [b]}}",
        "http_headers: {X-A: {foo: [b]}}",
        *(f"http_headers: {{{name}: {{values: [b]}}}}" for name in (*RESERVED_HEADERS, *OTHER_HEADERS)),
    ),
    "e-mail": (
        "to: a@b", "from: x@y", *(f"to: a@b, {more}" for more in (
            "smarthost: m", "smarthost: 'm:0'", "smarthost: 'm:x'", "smarthost: 'm:smtp'",
            "smarthost: '[::1]:25'",
            "smarthost: ':25'", "smarthost: 'm:99999'", "smarthost: 'm:'", "headers: {Subject: x}",
            "headers: {Subject: x, subject: y}", "headers: {'Sub ject': x}", "headers: {Subject: }",
            "headers: {Subject: '{{ .Foo '}", "html: '{{ .Status }}'", "html: '{{ .Status'",
            "html: '{{ foo . }}'",
            "html: '{{ template \"nope\" . }}'", "html: ''", "auth_password: p, auth_password_file: f",
            "auth_secret: p, auth_secret_file: f", "tls_config: {insecure_skip_verify: true}",
            "require_tls: false",
            "require_tls: x", "force_implicit_tls: true", "threading: {enabled: true}",
            "threading: {enabled: true, thread_by_date: none}", "threading: {enabled: true, thread_by_date: x}",
            "threading: {enabled: false, thread_by_date: x}", "hello: h", "foo: h", "http_config: {}",
        )),
        _THREADS, f"{_THREADS}, headers: {{References: x}}", f"{_THREADS}, headers: {{in-reply-to: x}}",
    ),
    "slack": (
        "", "api_url: x", "api_url: 'http://s/', api_url_file: /x", "fields: [{title: t, value: v}]",
        "fields: [{title: t}]", "fields: [{value: t}]", "fields: [{title: t, value: v, short: true}]",
        f"actions: [{{{_BUTTON}, url: u}}]", f"actions: [{{{_BUTTON}}}]", f"actions: [{{{_BUTTON}, name: n}}]",
        "actions: [{text: t, url: u}]", "actions: [{type: button, url: u}]",
        f"actions: [{{{_BUTTON}, url: u, confirm: {{text: x}}}}]",
        f"actions: [{{{_BUTTON}, url: u, confirm: {{title: x}}}}]", "mrkdwn_in: [text]", "text: '{{ end }}'",
        "timeout: 5s", "channel: null", "link_names: true",
    ),
    "slack alone": (
        "", "api_url: 'http://s/'", "app_token: t", "app_token: t, api_url: 'http://s/'",
        "app_token: t, app_token_file: /x", "app_token: t, http_config: {authorization: {credentials: x}}",
    ),
    "slack global": (
        "slack_app_token: t", "slack_app_token: t, slack_api_url: 'http://s/'",
        f"slack_app_token: t, {_APP_URL}",
        "slack_app_token: t, slack_api_url: 'http://s/', slack_app_url: 'http://s/'",
        "slack_app_token: t, slack_api_url_file: /x", "slack_api_url: 'http://s/', slack_api_url_file: /x",
        "slack_api_url: x", "slack_app_url: x, slack_api_url: 'http://s/'",
    ),
    "slack app": (
        "", "api_url: 'http://s/'", "api_url_file: /x", "http_config: {authorization: {credentials: x}}",
    ),
    "msteamsv2": (
        "webhook_url: 'http://t/'", "", "webhook_url: 'http://t/', webhook_url_file: /x",
        "webhook_url_file: /x",
        "webhook_url: 'http://t/', title: t, text: '{{ .Status }}'", "webhook_url: 'http://t/', summary: t",
    ),
    "discord": (
        "webhook_url: 'http://t/'", "", "webhook_url: 'http://t/', webhook_url_file: /x",
        "webhook_url: 'http://t/', username: u, avatar_url: 'http://a/', content: c",
        "webhook_url: 'http://t/', avatar_url: x",
    ),
    "telegram": (
        "bot_token: t", "chat_id: 5", "bot_token: t, bot_token_file: /x, chat_id: 5",
        *(f"bot_token: t, {more}" for more in (
            "chat_id: 5", "chat_id: 0", "chat_id: '5'", "chat_id: '@x'", "chat_id: -100123", "chat_id_file: /x",
            "chat_id: 5, chat_id_file: /x", "chat_id: 99999999999999999999", "chat_id: 1.5",
            "chat_id: 5, parse_mode: MarkdownV2", "chat_id: 5, parse_mode: x", "chat_id: 5, parse_mode: ''",
            "chat_id: 5, message_thread_id: 7", "chat_id: 5, message_thread_id: x",
            "chat_id: 5, message_thread_id: -7",
        )),
    ),
    "pagerduty": (
        "routing_key: k", "service_key: k", "", "routing_key: k, service_key: k", "routing_key_file: k",
        "routing_key: k, routing_key_file: k", "service_key: k, service_key_file: k",
        "routing_key: k, severity: '{{ .CommonLabels.severity }}'",
        "routing_key: k, details: {a: b, c: {d: e}}",
        "routing_key: k, details: [a]", "routing_key: k, links: [{href: h, text: t}], images: [{src: s}]",
        "routing_key: k, url: x", "routing_key: k, timeout: 5s", "routing_key: k, images: [{}]",
        "routing_key: k, images: [{foo: x}]",
    ),
    "opsgenie": (
        "", "api_key: k", "api_key_file: k", "api_key: k, api_key_file: k",
        *(f"api_key: k, {more}" for more in (
            "api_url: x", "api_url: ''", "api_url: 'http://o/'", "foo: 1", "update_alerts: x",
            "details: {a: b}",
            "details: [a]", "details: {a: {b: c}}", "details: {a: 5}", "responders: [{}]",
            "responders: [{name: n}]",
            "responders: [{name: n, type: team}]", "responders: [{name: n, type: Team}]",
            "responders: [{type: team}]", "responders: [{name: n, type: x}]",
            "responders: [{id: i, type: '{{ .Status }}'}]", "responders: [{id: i, type: '{{ .Status'}]",
            "responders: [{id: i, type: team, foo: 1}]",
            "tags: a, note: b, priority: P1, entity: e, actions: f",
            "tags: [a]", "message: '', description: '', source: ''", "teams: a",
        )),
    ),
    "opsgenie global": (
        "", "opsgenie_api_key: k", "opsgenie_api_key_file: k", "opsgenie_api_url: 'http://o/'",
        "opsgenie_api_key: k, opsgenie_api_url: ''",
    ),
    "webex": (
        "", "room_id: r", "room_id: '', http_config: {authorization: {credentials: t}}",
        "room_id: r, http_config: {}",
        "room_id: r, http_config: {basic_auth: {username: u}}", "room_id: r, http_config: {bearer_token: t}",
        *(f"room_id: r, http_config: {{authorization: {{credentials: t}}}}, {more}" for more in (
            "message: m", "foo: 1", "api_url: 'http://w/'", "api_url: w", "send_resolved: false",
        )),
        "room_id: r, http_config: {authorization: {}}",
    ),
    "pushover": (
        "", "user_key: u", "token: t", "user_key_file: u, token_file: t",
        "user_key: u, user_key_file: u, token: t",
        "user_key: u, token: t, token_file: t",
        *(f"user_key: u, token: t, {more}" for more in (
            "html: true", "monospace: true", "html: true, monospace: true", "retry: 1m30s", "retry: 1d",
            "retry: 60",
            "retry: 0", "retry: -1s", "expire: 1.5h", "expire: x", "expire: ''", "ttl: 1m", "ttl: 1m 2s",
            "priority: 1",
            "url: x", "url_title: t, device: d, sound: s", "foo: 1", "api_url: 'http://p/'",
        )),
    ),
    "victorops": (
        "", "api_key: k", "routing_key: r", "api_key: k, routing_key: r", "api_key_file: k, routing_key: r",
        "api_key: k, api_key_file: k, routing_key: r",
        *(f"api_key: k, routing_key: r, {more}" for more in (
            "api_url: x", "message_type: x", "message_type: ''", "custom_fields: {a: b}", "custom_fields: [a]",
            *(f"custom_fields: {{{name}: b}}" for name in (
                "routing_key", "message_type", "state_message", "entity_display_name", "monitoring_tool",
                "entity_id", "entity_state", "entity_name",
            )),
            "foo: 1", "state_message: s, entity_display_name: e, monitoring_tool: m",
        )),
    ),
    "victorops global": (
        "", "victorops_api_key: k", "victorops_api_key_file: k", "victorops_api_key: k, victorops_api_url: x",
    ),
    "mattermost": (
        "", "webhook_url: 'http://m/'", "webhook_url: m", "webhook_url_file: m",
        "webhook_url: 'http://m/', webhook_url_file: m",
        *(f"webhook_url: 'http://m/', {more}" for more in (
            "fields: [{title: t, value: v}]", "fields: [{title: t}]", "fields: [{value: v}]", "fields: [{}]",
            "fields: [{title: t, value: v, short: true}]", "fields: [{title: t, value: v, foo: 1}]",
            "attachments: [{}]", "attachments: [{text: t, fields: [{title: t}]}]",
            "attachments: [{channel: c}]",
            "attachments: [{text: t, fields: [{title: t, value: v}]}]", "props: {card: c}", "props: {foo: c}",
            "props: x", "priority: {priority: x}", "priority: x", "priority: {requested_ack: x}",
            "priority: {priority: urgent, requested_ack: true, persistent_notifications: true}",
            "priority: {foo: 1}", "channel: c, username: u, icon_url: i, icon_emoji: e, type: t", "foo: 1",
            "author_name: a, author_link: b, author_icon: c, footer: d, footer_icon: e",
        )),
    ),
    "mattermost global": (
        "", "mattermost_webhook_url: 'http://m/'", "mattermost_webhook_url: m",
        "mattermost_webhook_url_file: m",
    ),
    "rocketchat": (
        "", "token: t", "token_id: t", "token: t, token_id: i", "token_file: t, token_id_file: i",
        "token: t, token_file: t, token_id: i", "token: t, token_id: i, token_id_file: i",
        *(f"token: t, token_id: i, {more}" for more in (
            "api_url: x", "api_url: 'http://r/'", "fields: [{}]", "fields: [{title: t, value: v, short: true}]",
            "fields: [{foo: t}]", "fields: [{short: x}]", "actions: [{}]",
            "actions: [{type: x, text: t, url: u}]",
            "actions: [{msg: m, imageurl: i, iswebview: true, webviewheightratio: w, msginchatwindow: true}]",
            "actions: [{image_url: i}]", "actions: [{msgprocessingtype: x}]", "actions: [{iswebview: x}]",
            "short_fields: true, link_names: true", "link_names: x", "emoji: e, icon_url: i, thumb_url: t",
            "username: u", "foo: 1",
        )),
    ),
    "rocketchat global": (
        "", "rocketchat_token: t", "rocketchat_token: t, rocketchat_token_id: i",
        "rocketchat_token_file: t, rocketchat_token_id_file: i",
        "rocketchat_token: t, rocketchat_token_id: i, rocketchat_api_url: x",
    ),
    "msteams": (
        "webhook_url: 'http://t/'", "", "webhook_url: 'http://t/', webhook_url_file: /x",
        "webhook_url_file: /x",
        "webhook_url: t", "webhook_url: 'http://t/', title: t, summary: s, text: '{{ .Status }}'",
        "webhook_url: 'http://t/', foo: t",
    ),
    "wechat": (
        "", "api_secret: s", "corp_id: c", "api_secret: s, corp_id: c", "api_secret_file: s, corp_id: c",
        "api_secret: s, api_secret_file: s, corp_id: c",
        *(f"api_secret: s, corp_id: c, {more}" for more in (
            "message_type: text", "message_type: markdown", "message_type: x", "message_type: ''", "api_url: x",
            "to_user: u, to_party: p, to_tag: t, agent_id: 5", "foo: 1",
        )),
    ),
    "wechat global": (
        "", "wechat_api_secret: s", "wechat_api_secret: s, wechat_api_corp_id: c",
        "wechat_api_secret_file: s, wechat_api_corp_id: c",
        "wechat_api_secret: s, wechat_api_corp_id: c, wechat_api_url: x",
    ),
    "incidentio": (
        "", "url: 'http://i/'", "url: 'http://i/', url_file: /x", "url_file: /x", "url: i",
        "alert_source_token: t",
        *(f"url: 'http://i/', {more}" for more in (
            "alert_source_token: t", "alert_source_token_file: t",
            "alert_source_token: t, alert_source_token_file: t",
            "http_config: {}", "http_config: {authorization: {credentials: c}}",
            "http_config: {bearer_token: c}",
            "alert_source_token: t, http_config: {authorization: {credentials: c}}",
            "alert_source_token: t, http_config: {basic_auth: {username: u}}",
            "alert_source_token: t, http_config: {}",
            "http_config: {basic_auth: {username: u}}", "max_alerts: 5", "max_alerts: -1", "timeout: 5s",
            "timeout: x",
            "foo: 1",
        )),
    ),
    "jira": (
        "", "project: p, issue_type: t", "api_url: 'http://j/', project: p",
        "api_url: 'http://j/', issue_type: t",
        "api_url: j, project: p, issue_type: t",
        *(f"api_url: 'http://j/', project: p, issue_type: t{more}" for more in (
            "", ", api_type: cloud", ", api_type: x", ", api_type: ''", ", summary: s, description: d",
            ", summary: {}",
            ", summary: {template: s, enable_update: false}", ", summary: {foo: s}", ", summary: [s]",
            ", description: {enable_update: x}", ", labels: [a, b]", ", labels: a", ", priority: p",
            ", fields: {a: {b: [c, 5]}}", ", fields: [a]", ", custom_fields: {a: b}", ", reopen_duration: 1d",
            ", reopen_duration: x", ", reopen_transition: r, resolve_transition: s, wont_fix_resolution: w",
            ", foo: 1",
        )),
    ),
    "jira global": ("", "jira_api_url: 'http://j/'", "jira_api_url: x", "jira_api_url: ''"),
    "sns": (
        "", "topic_arn: t", "phone_number: p", "target_arn: t", "topic_arn: t, phone_number: p",
        "topic_arn: t, target_arn: p", "topic_arn: t, phone_number: p, target_arn: t",
        *(f"topic_arn: t, {more}" for more in (
            "sigv4: {}", "sigv4: {region: r}", "sigv4: {access_key: a}", "sigv4: {secret_key: a}",
            "sigv4: {access_key: a, secret_key: s}", "sigv4: {profile: p, role_arn: r}", "sigv4: {foo: 1}",
            "sigv4: {use_fips_sts_endpoint: true, service_name: s}", "sigv4: {external_id: e}",
            "sigv4: {external_id: e, role_arn: r}", "api_url: x", "attributes: {a: b}", "attributes: [a]",
            "subject: '', message: ''", "use_aws_http_client: true", "use_aws_http_client: x", "foo: 1",
        )),
    ),
}  # fmt: skip

CRASHES: Final = (
    ("routes", "[null]"),
    ("receivers", "{name: b, slack_configs: [null]}"),
    ("slack global", "slack_app_token: t, slack_api_url_file: /x"),
)
"""amtool ends with a Go panic; here they are refused."""

_TEMPLATE = "Alertmanager finds a template's mistake when it sends the message"
_EMPTY = "an empty list entry is refused"
_QUOTED = "a number or truth value in quotes counts as one"
_NO_FRACTION = "Alertmanager cuts a fraction off"
_MAIL_SERVER = "Alertmanager finds the mistake when it connects"
DIFFERENCES: Final[dict[tuple[str, str], str]] = {
    ("file", FRAGMENTS["file"][9]): "a second YAML document is refused; Alertmanager ignores it",
    ("top", "tracing: {foo: 1}"): "tracing has no effect and is not checked",
    ("top", "tracing: {}"): "tracing has no effect and is not checked",
    ("top", "time_intervals: [null]"): _EMPTY,
    ("receivers", "null"): _EMPTY,
    ("matchers", "[null]"): _EMPTY,
    ("time interval", "times: [null]"): _EMPTY,
    ("route", "continue: 'true'"): _QUOTED,
    ("webhook", "url: 'http://h/', max_alerts: '5'"): _QUOTED,
    ("telegram", "bot_token: t, chat_id: '5'"): _QUOTED,
    ("webhook", "url: 'http://h/', max_alerts: 1.5"): _NO_FRACTION,
    ("telegram", "bot_token: t, chat_id: 1.5"): _NO_FRACTION,
    ("telegram", "bot_token: t, chat_id: 5, message_thread_id: -7"): "no thread has a negative number",
    ("time interval", "months: [13]"): "no month has this number: the interval would never match",
    ("time interval", "months: [0]"): "no month has this number: the interval would never match",
    ("webhook", "url: 'http://h:99999/'"): "no port has this number",
    ("webhook", "url: 'http://h/', payload: {a: '{{ .Status '}"): _TEMPLATE,
    ("e-mail", "to: a@b, headers: {Subject: '{{ .Foo '}"): _TEMPLATE,
    ("e-mail", "to: a@b, html: '{{ .Status'"): _TEMPLATE,
    ("e-mail", "to: a@b, html: '{{ foo . }}'"): _TEMPLATE,
    ("slack", "text: '{{ end }}'"): _TEMPLATE,
    ("e-mail", "to: a@b, headers: {'Sub ject': x}"): "the mail server would refuse the header",
    **{
        ("e-mail", f"to: a@b, smarthost: '{host}'"): _MAIL_SERVER
        for host in ("m:0", "m:x", "m:smtp", ":25", "m:99999")
    },
    ("e-mail", "to: a@b, auth_password: p, auth_password_file: f"): "Alertmanager ignores one of the two",
    ("e-mail", "to: a@b, auth_secret: p, auth_secret_file: f"): "Alertmanager ignores one of the two",
    ("global", "http_config: {tls_config: {ca_file: /nonexistent}}"): "amtool does not open the file",
}


def whole_file(place: str, fragment: str) -> str:
    return PLACES[place].format(fragment) + "\n"


def all_fragments() -> Iterator[tuple[str, str]]:
    for place, fragments in FRAGMENTS.items():
        for fragment in fragments:
            yield place, fragment
