"""Every row of the table of limits names the test that reaches it and sees it counted.

A new limit without such a test fails here, and so does a test that was renamed or no longer looks at its limit.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from gpuscope.base.limits import limit_names

ROOT = Path(__file__).parent
SEES_A_COUNT = ("LIMITS_REACHED", "reaches(", "reached()")
COUNTED_ELSEWHERE = {"scrape_max_pending_bytes": ".limit =="}
"""The scrape loop counts whatever limit a ScrapeError names, which `test_scraper` shows with other limits."""

HTTP = "server/http/test_limits.py::"
WEB = "server/web_config/test_config_file.py::"
SCRAPER = "scrape/test_scraper.py::"
HOSTILE_TARGETS = SCRAPER + "test_hostile_targets_fail_with_a_reason_and_others_are_scraped"
WRITES = "remote_write/test_codec_v2.py::"
WRITTEN_LABELS = WRITES + "test_a_series_beyond_the_limits_of_labels_is_refused_alone"
STORE = "store/test_series_limit.py::"
NOTIFIER = "notify/test_notifier.py::"
TEMPLATES = "rules/templates/test_limits.py::"

STREAM = "server/live/test_event_stream.py::"

REACHED_BY = {
    "audit_log_max_bytes": "server/login/test_user_routes.py::test_the_audit_log_is_bounded_and_private",
    "max_live_streams": STREAM + "test_streams_are_limited_in_number",
    "live_stream_lifetime": STREAM + "test_a_stream_ends_after_its_lifetime_as_valid_gzip",
    "live_stream_kept_bytes": STREAM + "test_a_client_of_another_time_gets_the_whole_picture",
    "template_max_bytes": TEMPLATES + "test_a_text_that_is_too_long_is_refused_when_it_is_loaded",
    "template_max_steps": TEMPLATES + "test_a_loop_ends",
    "template_max_text_bytes": TEMPLATES + "test_the_text_that_functions_use_is_bounded",
    "template_max_output_bytes": TEMPLATES + "test_output_is_bounded",
    "template_max_depth": TEMPLATES + "test_nesting_is_bounded",
    "max_connections": HTTP + "test_tls_handshakes_are_counted_and_time_out",
    "max_request_head_bytes": HTTP + "test_the_head_limit_holds_for_a_single_read",
    "max_connections_per_address": HTTP + "test_one_address_cannot_take_all_connections",
    "tls_handshake_timeout": HTTP + "test_tls_handshakes_are_counted_and_time_out",
    "request_head_timeout": HTTP + "test_head_and_keep_alive_timeouts",
    "request_body_timeout": HTTP + "test_a_body_sent_byte_by_byte_has_a_total_timeout",
    "max_request_bodies_bytes": HTTP + "test_bodies_share_a_budget_and_small_ones_are_not_counted",
    "client_stall_timeout": HTTP + "test_a_stalled_body_gets_408",
    "min_response_rate": HTTP + "test_a_response_received_too_slowly_is_aborted",
    "keep_alive_timeout": HTTP + "test_head_and_keep_alive_timeouts",
    "max_client_log_lines": HTTP + "test_client_log_lines_are_limited_per_minute",
    "max_password_attempts_per_address": WEB
    + "test_wrong_passwords_are_limited_and_logged_and_verified_users_pass",
    "max_password_attempts_per_user": WEB + "test_attempts_from_many_addresses_are_limited_per_user",
    "max_password_queue": WEB + "test_many_wrong_passwords_block_neither_query_threads_nor_verified_users",
    "mcp_max_concurrency": "server/mcp/test_protocol.py::test_so_many_calls_run_at_once",
    "query_max_samples": "promql/test_engine.py::test_too_many_samples",
    "query_max_total_samples": "promql/test_sample_pool.py::test_waiting_is_limited",
    "query_timeout": "promql/test_engine.py::test_query_timeout",
    "query_max_concurrency": "server/api/test_large_responses.py::"
    "test_a_query_that_waits_for_a_thread_is_counted",
    "query_log_max_bytes": "server/api/test_query_log.py::"
    "test_the_file_is_bounded_and_a_moved_one_is_opened_again",
    "query_max_label_bytes": "promql/test_budget.py::test_a_growing_label_is_refused_before_it_is_created",
    "query_max_selectors": "server/api/test_hostile_parameters.py::test_the_number_of_selectors_is_limited",
    "query_max_large_responses": "server/api/test_large_responses.py::"
    "test_more_large_responses_than_allowed_are_refused_and_small_ones_are_not",
    "rules_max_template_queries": "rules/test_alert_templates.py::"
    "test_lookups_of_many_alerts_take_turns_and_new_alerts_come_first",
    "findings_max_range": "server/reports/test_findings_over_time.py::"
    "test_a_range_beyond_the_limit_is_refused_and_counted",
    "rules_max_alerts": "rules/test_runner.py::test_more_alerts_than_allowed_fail_the_rule",
    "alertmanager_queue_capacity": "rules/test_alertmanagers.py::"
    "test_a_full_queue_drops_the_oldest_and_counts_the_limit",
    "alertmanagers_max": "rules/test_alertmanagers.py::test_more_alertmanagers_than_the_limit_get_nothing",
    "scrape_max_targets": SCRAPER + "test_targets_above_the_limit_are_not_scraped_and_logged_once",
    "scrape_max_body_bytes": HOSTILE_TARGETS,
    "scrape_max_pending_bytes": SCRAPER + "test_concurrent_large_bodies_are_limited_and_small_ones_pass",
    "scrape_max_samples": HOSTILE_TARGETS,
    "scrape_max_line_bytes": HOSTILE_TARGETS,
    "scrape_max_labels": HOSTILE_TARGETS,
    "scrape_max_label_name_bytes": HOSTILE_TARGETS,
    "scrape_max_label_value_bytes": HOSTILE_TARGETS,
    "scrape_max_metadata_bytes": "scrape/test_ingest.py::test_errors_name_the_limit",
    "discovery_max_body_bytes": "scrape/test_http_provider.py::test_the_size_of_an_answer_is_limited",
    "discovery_max_objects": "scrape/test_kubernetes_provider.py::test_the_number_of_objects_is_limited",
    "write_max_request_bytes": "server/api/test_remote_write.py::test_too_large",
    "write_max_decoded_bytes": "server/api/test_remote_write.py::test_too_large",
    "write_max_samples": WRITES + "test_limits",
    "write_max_symbols": WRITES + "test_limits",
    "write_max_labels": WRITTEN_LABELS,
    "write_max_label_name_bytes": WRITTEN_LABELS,
    "write_max_label_value_bytes": WRITTEN_LABELS,
    "idle_audit_max_bytes": "notify/test_idle_policy.py::test_the_audit_log_is_bounded_and_private",
    "report_max_concurrency": "server/reports/test_report_routes.py::test_reports_at_once_are_bounded",
    "report_max_rows": "server/reports/test_report_routes.py::test_rows_are_bounded_and_the_total_has_all",
    "engine_max_answers_bytes": "query_engines/test_hostile_engine.py::"
    "test_answers_that_are_read_at_once_share_one_budget",
    "engine_max_response_bytes": "query_engines/test_http_engine.py::"
    "test_an_answer_that_is_too_large_is_not_read_to_its_end",
    "live_max_subjects": "server/live/test_picture.py::"
    "test_the_last_nodes_of_a_fleet_that_is_too_large_are_left_out",
    "live_max_gone_nodes": "server/live/test_gone_nodes.py::test_more_than_the_limit_are_left_out",
    "max_series": STORE + "test_new_series_beyond_the_limit_are_refused_and_existing_ones_continue",
    "max_new_series": STORE + "test_max_new_series_within_ten_minutes",
    "max_alerts": NOTIFIER + "test_alerts_are_bounded_and_room_comes_back",
    "max_alert_groups": NOTIFIER + "test_groups_are_bounded_and_what_still_fires_gets_its_turn",
    "max_alert_bytes": "server/api/test_alertmanager.py::test_limits_on_what_clients_send",
    "max_alerts_request_bytes": "server/api/test_alertmanager.py::test_limits_on_what_clients_send",
    "max_alerts_request_values": "server/api/test_alertmanager.py::test_limits_on_what_clients_send",
    "max_silence_bytes": "notify/test_silences.py::test_the_size_of_a_silence_is_bounded",
    "max_silence_patterns": "notify/test_silences.py::test_matchers_that_are_not_equalities_are_bounded",
    "max_silences": "notify/test_silences.py::test_silences_are_bounded",
    "max_notification_history": "notify/test_notification_history.py::"
    "test_the_oldest_records_are_forgotten_also_in_the_file",
}


@cache
def _tests(path: str) -> dict[str, str]:
    """The source of each test of a file, with its decorators."""
    source = (ROOT / path).read_text()
    lines = source.splitlines()
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found


def test_no_row_is_missing_and_none_is_left_over() -> None:
    assert sorted(REACHED_BY) == sorted(limit_names())


@pytest.mark.parametrize("limit", REACHED_BY)
def test_the_test_exists_and_sees_the_limit_counted(limit: str) -> None:
    path, _, name = REACHED_BY[limit].partition("::")
    source = _tests(path).get(name)
    assert source is not None, f"{path} has no {name}"
    assert f'"{limit}"' in source or f"{limit}=" in source
    assert any(word in source for word in (*SEES_A_COUNT, COUNTED_ELSEWHERE.get(limit, SEES_A_COUNT[0])))
