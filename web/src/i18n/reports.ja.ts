// 日本語: the sentences of reports, receipts and coverage, by the API's keys.
import type { ReportTextKey } from "../api-types";

export const reports: Record<ReportTextKey, string> = {
  "missing.fast_clock":
    "{node}: カウンターが期間より {hours} 時間多く増えました。ノードとサーバーの時計（クロック）がずれています",
  "missing.filling": "過去のデータはまだ書き込み中です。{at} まで揃っており、レポートはそこで終わります",
  "missing.first_seen": "GPU {gpus} 基のうち {count} 基はこの期間中に初めて現れました",
  "missing.kind": "{kind} は {hours} 時間分が不明です: {reason}",
  "missing.late": "履歴は期間の開始から {hours} 時間後に始まります",
  "missing.late_at": "履歴は期間の開始から {hours} 時間後、{at} に始まります",
  "missing.left": "GPU {count} 基は直近 7 日間何も送っていません。最後のサンプルまでを数えます",
  "missing.more_nodes": "ほか {count} ノード: {hours} GPU時間の欠落",
  "missing.no_energy": "{hours} GPU時間は電力量が不明です。GPU が報告しないか、複数の所有者が共有しています",
  "missing.no_gpu": "この期間の履歴に GPU がありません。gpuscope エージェントがないか、保存期間より古い期間です",
  "missing.no_history":
    "この期間には {metric} がありません。エージェントがないか、古い版か、期間が取得間隔より短いためです",
  "missing.no_label":
    "履歴のどの Pod にもラベル {label} がありません。エージェントは --pod-labels で指定したラベルを出力します",
  "missing.no_owner": "履歴に種類 {kind} の所有者がいません。{hours} 時間すべての所有者が不明です",
  "missing.no_processes": "{hours} GPU時間にはプロセスと所有者の情報がなく、使い方に関する問題点は不明です",
  "missing.no_rate": "モデル {model} の単価がありません。{hours} GPU時間は費用に含まれません",
  "missing.node": "{node}: {hours} GPU時間の欠落。エージェントが停止していたか、GPU が応答しませんでした",
  "missing.not_read": "{hours} GPU時間がありません。エージェントが停止していたか、GPU を読めませんでした",
  "missing.parts_differ": "内訳の合計が GPU時間と {hours} 時間異なり、0.1 % を超えています",
  "missing.allocations":
    "期間中の Slurm の割り当ては {count} 件で多すぎるため読めません。prolog のないノードでは、ジョブがプロセスなしで占有した GPU が空きと数えられます",
  "missing.allocations_rolled_up":
    "期間のうち {hours} 時間はロールアップだけから分かり、ロールアップには Slurm の割り当てがありません。prolog のないノードでは、ジョブがプロセスなしで占有した GPU が空きと数えられます",
  "missing.allocations_refused":
    "Slurm が割り当てた GPU をエンジンから読めません。prolog のないノードでは、ジョブがプロセスなしで占有した GPU が空きと数えられます: {reason}",
  "missing.refused": "エンジンが期間のうち {hours} 時間を拒否したため、レポートに含まれません: {reason}",
  "missing.samples_gone":
    "最初の {hours} 時間のサンプルはもう保存されていません。ロールアップは 1 時間単位なので、レポートはその分遅く始まります",
  "missing.silent_node":
    "{node}: {hours} GPU時間の欠落。{at} より後のサンプルがありません。エージェントが停止しているか、サンプルがまだ届いていません",
  "missing.some_processes": "{hours} GPU時間はプロセスと所有者の情報がないか、MIG インスタンスの間です",
  "missing.unread": "期間のうち {hours} 時間はまだ読み込まれていません。1 分後に再度確認してください",
  "note.early": "各 GPU は開始前の最後の測定値から数えます。期間 {range_hours} 時間より合計 {hours} 時間多くなります",
  "note.kept": "サンプルは {days} 日、ロールアップは {rollup_days} 日保存されます",
  "note.kept_by_engine": "{product} はサンプルとロールアップを {days} 日保存します",
  "note.mig_energy":
    "MIG インスタンスの電力量は推定値です。アイドル時の電力はスライスで、それを超える分は活動量で按分します",
  "note.retention_unknown": "ロールアップはエンジンの保存期間だけ残りますが、エンジンはその期間を示しません",
  "note.rollups": "ロールアップから {hours} 時間、サンプルから {sample_hours} 時間を読みました",
  "receipt.all_unused": "GPU は 1 基も使われませんでした。",
  "receipt.idle_job": "GPU が連続 {hours} 時間アイドルでした。処理が終わったらジョブを終了してください。",
  "receipt.idle_pod": "GPU が連続 {hours} 時間アイドルでした。処理が終わったら Pod を終了してください。",
  "receipt.low": "GPU の稼働は時間の {busy} % でした。",
  "receipt.low.waits_for_data":
    "GPU の稼働は時間の {busy} % で、時間の {percent} % は一つのスレッドがコアを使い切っていました。",
  "receipt.low.waits_for_disk":
    "GPU の稼働は時間の {busy} % で、時間の {percent} % はファイル I/O で止まっていました。",
  "receipt.low.waits_for_network":
    "GPU の稼働は時間の {busy} % で、時間の {percent} % はネットワークを待っていました。",
  "receipt.low_memory": "GPU メモリの使用は最大 {percent} % でした。より小さい GPU か MIG インスタンスで足ります。",
  "receipt.short": "実行時間は制限の {percent} % でした。制限の短いジョブほど早く始まります。",
  "receipt.waits_for_rank": "時間の {percent} % の間、GPU がより遅い GPU を待っていました。",
  "receipt.throttled": "時間の {percent} % で GPU が減速しました（{reason}）。",
  "receipt.uneven": "GPU の稼働に偏りがあり、時間の {low} % から {high} % まで差があります。",
  "receipt.unused": "GPU {gpus} 基のうち {count} 基は一度も使われませんでした。",
  "receipt.xid": "GPU で XID {xid} が {count} 回発生。",
  "receipt.xid_once": "GPU で XID {xid} が 1 回発生。",
  "unknown.array": "配列のほかのタスク {count} 個: それぞれの明細は {job}_TASK です",
  "unknown.before": "{at} より前に何をしていたか（存在していた場合）: その時 GPU は読まれていません",
  "unknown.energy": "電力量: GPU が報告しないか、複数の所有者が共有しています",
  "unknown.filling": "{at} より後に何をしたか。過去のデータはまだ書き込み中です",
  "unknown.first_hours": "{at} までの最初の {hours} 時間: その時 GPU は読まれていません",
  "unknown.gaps": "実行中の {hours} GPU時間: エージェントが停止していたか、GPU が応答しませんでした",
  "unknown.host": "CPU とメインメモリ: `{command}` で確認できます",
  "unknown.memory": "GPU メモリの最大使用量",
  "unknown.requested_job": "要求した GPU 数: Slurm を読むエージェントがありません（docs/slurm.md）",
  "unknown.requested_job_not_listed": "要求した GPU 数: Slurm を読んだとき一覧にこのジョブがありませんでした",
  "unknown.requested_pod": "要求した GPU 数: 履歴に割り当てがありません",
  "unknown.waited_not_listed": "待機時間: Slurm を読んだとき一覧にこのジョブがありませんでした",
  "unknown.waited": "待機時間: Slurm を読むエージェントがありません（docs/slurm.md）",
  "unknown.work": "{hours} GPU時間の作業量: ドライバがプロセス別に報告しません",
};
