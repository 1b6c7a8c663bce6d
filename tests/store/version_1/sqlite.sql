BEGIN TRANSACTION;
CREATE TABLE andon_blocks (
	kind TEXT NOT NULL,
	id TEXT NOT NULL,
	data TEXT NOT NULL,
	PRIMARY KEY (kind, id)
);
CREATE TABLE andon_cancels (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	run_id TEXT NOT NULL,
	agent_id TEXT NOT NULL,
	user_id TEXT NOT NULL,
	session_id TEXT NOT NULL,
	at DOUBLE NOT NULL,
	request TEXT NOT NULL
);
INSERT INTO "andon_cancels" VALUES(1,'r3','helper','ada','s3',1754000001.25,'{"cause":"user","reason":"enough","by":"ada","mode":"now","grace":null,"requested_at":1754000001.25}');
CREATE TABLE andon_events (
	number BIGINT NOT NULL,
	seq INTEGER NOT NULL,
	data TEXT NOT NULL,
	PRIMARY KEY (number, seq)
)
 WITHOUT ROWID

;
INSERT INTO "andon_events" VALUES(1,1,'{"event":"RunStarted","run_id":"r1","session_id":"s1","agent_id":"helper","seq":1,"created_at":1754000000.1358023}');
INSERT INTO "andon_events" VALUES(1,2,'{"event":"ReasoningContentDelta","run_id":"r1","session_id":"s1","agent_id":"helper","seq":2,"created_at":1754000000.1481478,"content":"Let me "}');
INSERT INTO "andon_events" VALUES(1,3,'{"event":"ReasoningContentDelta","run_id":"r1","session_id":"s1","agent_id":"helper","seq":3,"created_at":1754000000.1604934,"content":"think."}');
INSERT INTO "andon_events" VALUES(1,4,'{"event":"RunContent","run_id":"r1","session_id":"s1","agent_id":"helper","seq":4,"created_at":1754000000.172839,"content":"Once "}');
INSERT INTO "andon_events" VALUES(1,5,'{"event":"RunContent","run_id":"r1","session_id":"s1","agent_id":"helper","seq":5,"created_at":1754000000.1851845,"content":"upon "}');
INSERT INTO "andon_events" VALUES(1,6,'{"event":"RunContent","run_id":"r1","session_id":"s1","agent_id":"helper","seq":6,"created_at":1754000000.19753,"content":"a "}');
INSERT INTO "andon_events" VALUES(1,7,'{"event":"RunContent","run_id":"r1","session_id":"s1","agent_id":"helper","seq":7,"created_at":1754000000.2098756,"content":"time"}');
INSERT INTO "andon_events" VALUES(1,8,'{"event":"RunContent","run_id":"r1","session_id":"s1","agent_id":"helper","seq":8,"created_at":1754000000.2222211,"content":"…\n"}');
INSERT INTO "andon_events" VALUES(1,9,'{"event":"RunContent","run_id":"r1","session_id":"s1","agent_id":"helper","seq":9,"created_at":1754000000.2345667,"content":"it''s \"odd\" \\ \u0000   𝄞"}');
INSERT INTO "andon_events" VALUES(1,10,'{"event":"RunContent","run_id":"r1","session_id":"s1","agent_id":"helper","seq":10,"created_at":1754000000.2469122}');
INSERT INTO "andon_events" VALUES(1,11,'{"event":"ToolCallStarted","run_id":"r1","session_id":"s1","agent_id":"helper","seq":11,"created_at":1754000000.2592578,"tool":{"call_id":"c1","name":"look","arguments":{"deep":[{"er":null}],"é":1.5}}}');
INSERT INTO "andon_events" VALUES(1,12,'{"event":"RunStarted","run_id":"r1-child","session_id":"inner","agent_id":"scout","seq":12,"created_at":1754000000.2716033,"parent_run_id":"r1"}');
INSERT INTO "andon_events" VALUES(1,13,'{"event":"RunContent","run_id":"r1-child","session_id":"inner","agent_id":"scout","seq":13,"created_at":1754000000.283949,"content":"I "}');
INSERT INTO "andon_events" VALUES(1,14,'{"event":"RunContent","run_id":"r1-child","session_id":"inner","agent_id":"scout","seq":14,"created_at":1754000000.2962945,"content":"see "}');
INSERT INTO "andon_events" VALUES(1,15,'{"event":"RunContent","run_id":"r1-child","session_id":"inner","agent_id":"scout","seq":15,"created_at":1754000000.30864,"content":"land"}');
INSERT INTO "andon_events" VALUES(1,16,'{"event":"RunCompleted","run_id":"r1-child","session_id":"inner","agent_id":"scout","seq":16,"created_at":1754000000.3209856,"content":"I see land","status":"COMPLETED","usage":{"input_tokens":3,"output_tokens":4,"cached_tokens":0,"reasoning_tokens":0,"estimated":false}}');
INSERT INTO "andon_events" VALUES(1,17,'{"event":"ToolCallCompleted","run_id":"r1","session_id":"s1","agent_id":"helper","seq":17,"created_at":1754000000.333331,"tool":{"call_id":"c1","name":"look","arguments":{"é":1.5},"result":"I see land","outcome":"completed"}}');
INSERT INTO "andon_events" VALUES(1,18,'{"event":"ModelRetry","run_id":"r1","session_id":"s1","agent_id":"helper","seq":18,"created_at":1754000000.3456767,"error":"429","delay":0.5}');
INSERT INTO "andon_events" VALUES(1,19,'{"event":"RunContent","run_id":"r1","session_id":"s1","agent_id":"helper","seq":19,"created_at":1754000000.3580222,"content":"w0 "}');
INSERT INTO "andon_events" VALUES(1,20,'{"event":"RunContent","run_id":"r1","session_id":"s1","agent_id":"helper","seq":20,"created_at":1754000000.3703678,"content":"w1 "}');
INSERT INTO "andon_events" VALUES(1,21,'{"event":"RunContent","run_id":"r1","session_id":"s1","agent_id":"helper","seq":21,"created_at":1754000000.3827133,"content":"w2 "}');
INSERT INTO "andon_events" VALUES(1,22,'{"event":"RunContent","run_id":"r1","session_id":"s1","agent_id":"helper","seq":22,"created_at":1754000000.3950589,"content":"w3 "}');
INSERT INTO "andon_events" VALUES(1,23,'{"event":"RunContent","run_id":"r1","session_id":"s1","agent_id":"helper","seq":23,"created_at":1754000000.4074044,"content":"w4 "}');
INSERT INTO "andon_events" VALUES(1,24,'{"event":"RunContent","run_id":"r1","session_id":"s1","agent_id":"helper","seq":24,"created_at":1754000000.41975,"content":"w5 "}');
INSERT INTO "andon_events" VALUES(1,25,'{"event":"RunContent","run_id":"r1","session_id":"s1","agent_id":"helper","seq":25,"created_at":1754000000.4320955,"content":"w6 "}');
INSERT INTO "andon_events" VALUES(1,26,'{"event":"RunContent","run_id":"r1","session_id":"s1","agent_id":"helper","seq":26,"created_at":1754000000.444441,"content":"w7 "}');
INSERT INTO "andon_events" VALUES(1,27,'{"event":"RunContent","run_id":"r1","session_id":"s1","agent_id":"helper","seq":27,"created_at":1754000000.4567866,"content":"w8 "}');
INSERT INTO "andon_events" VALUES(1,28,'{"event":"RunContent","run_id":"r1","session_id":"s1","agent_id":"helper","seq":28,"created_at":1754000000.4691322,"content":"w9 "}');
INSERT INTO "andon_events" VALUES(1,29,'{"event":"RunContent","run_id":"r1","session_id":"s1","agent_id":"helper","seq":29,"created_at":1754000000.4814777,"content":"w10 "}');
INSERT INTO "andon_events" VALUES(1,30,'{"event":"RunContent","run_id":"r1","session_id":"s1","agent_id":"helper","seq":30,"created_at":1754000000.4938233,"content":"w11 "}');
INSERT INTO "andon_events" VALUES(1,31,'{"event":"RunContent","run_id":"r1","session_id":"s1","agent_id":"helper","seq":31,"created_at":1754000000.5061688,"content":"w12 "}');
INSERT INTO "andon_events" VALUES(1,32,'{"event":"RunContent","run_id":"r1","session_id":"s1","agent_id":"helper","seq":32,"created_at":1754000000.5185144,"content":"w13 "}');
INSERT INTO "andon_events" VALUES(1,33,'{"event":"RunContent","run_id":"r1","session_id":"s1","agent_id":"helper","seq":33,"created_at":1754000000.53086,"content":"w14 "}');
INSERT INTO "andon_events" VALUES(1,34,'{"event":"RunContent","run_id":"r1","session_id":"s1","agent_id":"helper","seq":34,"created_at":1754000000.5432055,"content":"w15 "}');
INSERT INTO "andon_events" VALUES(1,35,'{"event":"RunContent","run_id":"r1","session_id":"s1","agent_id":"helper","seq":35,"created_at":1754000000.555551,"content":"w16 "}');
INSERT INTO "andon_events" VALUES(1,36,'{"event":"RunContent","run_id":"r1","session_id":"s1","agent_id":"helper","seq":36,"created_at":1754000000.5678966,"content":"w17 "}');
INSERT INTO "andon_events" VALUES(1,37,'{"event":"RunContent","run_id":"r1","session_id":"s1","agent_id":"helper","seq":37,"created_at":1754000000.5802422,"content":"w18 "}');
INSERT INTO "andon_events" VALUES(1,38,'{"event":"RunContent","run_id":"r1","session_id":"s1","agent_id":"helper","seq":38,"created_at":1754000000.5925877,"content":"w19 "}');
INSERT INTO "andon_events" VALUES(1,39,'{"event":"RunCompleted","run_id":"r1","session_id":"s1","agent_id":"helper","seq":39,"created_at":1754000000.6049333,"content":"Once upon a time","status":"COMPLETED","usage":{"input_tokens":10,"output_tokens":20,"cached_tokens":0,"reasoning_tokens":0,"estimated":false}}');
INSERT INTO "andon_events" VALUES(2,1,'{"event":"RunStarted","run_id":"r2","session_id":"s2","agent_id":"helper","seq":1,"created_at":1754000000.6172788}');
INSERT INTO "andon_events" VALUES(2,2,'{"event":"RunContent","run_id":"r2","session_id":"s2","agent_id":"helper","seq":2,"created_at":1754000000.6296244,"content":"Shall I?"}');
INSERT INTO "andon_events" VALUES(2,3,'{"event":"RunPaused","run_id":"r2","session_id":"s2","agent_id":"helper","seq":3,"created_at":1754000000.64197,"interrupts":[]}');
INSERT INTO "andon_events" VALUES(3,1,'{"event":"RunStarted","run_id":"r3","session_id":"s3","agent_id":"helper","seq":1,"created_at":1754000000.6543155}');
INSERT INTO "andon_events" VALUES(3,2,'{"event":"RunContent","run_id":"r3","session_id":"s3","agent_id":"helper","seq":2,"created_at":1754000000.666661,"content":"No"}');
INSERT INTO "andon_events" VALUES(3,3,'{"event":"CancelRequested","run_id":"r3","session_id":"s3","agent_id":"helper","seq":3,"created_at":1754000000.6790066,"reason":"enough"}');
INSERT INTO "andon_events" VALUES(3,4,'{"event":"RunCancelled","run_id":"r3","session_id":"s3","agent_id":"helper","seq":4,"created_at":1754000000.6913521,"content":"No","status":"CANCELLED","usage":{"input_tokens":1,"output_tokens":2,"cached_tokens":0,"reasoning_tokens":0,"estimated":false},"receipt":{"cause":"user","reason":"enough","by":"ada","mode":"now","requested_at":1754000001.25,"stopped_at":1794851305.8098693,"latency":40851304.55986929,"phase":"streaming","tools":[],"usage":{"input_tokens":1,"output_tokens":2,"cached_tokens":0,"reasoning_tokens":0,"estimated":false},"leftovers":[]},"reason":"enough"}');
INSERT INTO "andon_events" VALUES(4,1,'{"event":"RunStarted","run_id":"r4","session_id":"s4","agent_id":"helper","seq":1,"created_at":1754000000.7036977}');
INSERT INTO "andon_events" VALUES(4,2,'{"event":"RunContent","run_id":"r4","session_id":"s4","agent_id":"helper","seq":2,"created_at":1754000000.7160432,"content":"I am"}');
INSERT INTO "andon_events" VALUES(4,3,'{"event":"RunContent","run_id":"r4","session_id":"s4","agent_id":"helper","seq":3,"created_at":1754000000.7283888,"content":" sti"}');
CREATE TABLE andon_meta (
	version INTEGER NOT NULL
);
INSERT INTO "andon_meta" VALUES(1);
CREATE TABLE andon_records (
	number BIGINT NOT NULL,
	record TEXT NOT NULL,
	messages TEXT,
	PRIMARY KEY (number)
);
INSERT INTO "andon_records" VALUES(1,'{"run_id":"r1","session":["helper","ada","s1"],"status":"COMPLETED","created_at":1754000000.5,"metadata":{"from":"version 1"},"stop_reason":null,"content":"Once upon a time","usage":null,"receipt":null,"error":null,"interrupts":[],"continues":null,"parent_run_id":null,"cut_calls":[],"bookmark":null}','[{"role":"user","content":[{"type":"text","text":"One"}]},{"role":"assistant","content":[{"type":"text","text":"One, indeed"}]}]');
INSERT INTO "andon_records" VALUES(2,'{"run_id":"r2","session":["helper","ada","s2"],"status":"PAUSED","created_at":1754000000.5,"metadata":{"from":"version 1"},"stop_reason":null,"content":"","usage":null,"receipt":null,"error":null,"interrupts":[],"continues":null,"parent_run_id":null,"cut_calls":[],"bookmark":null}','[{"role":"user","content":[{"type":"text","text":"Two"}]},{"role":"assistant","content":[{"type":"text","text":"Two, indeed"}]}]');
INSERT INTO "andon_records" VALUES(3,'{"run_id":"r3","session":["helper","ada","s3"],"status":"CANCELLED","created_at":1754000000.5,"metadata":{"from":"version 1"},"stop_reason":null,"content":"","usage":null,"receipt":{"cause":"user","reason":"enough","by":"ada","mode":"now","requested_at":1754000001.25,"stopped_at":1794851305.8098693,"latency":40851304.55986929,"phase":"streaming","tools":[],"usage":{"input_tokens":1,"output_tokens":2,"cached_tokens":0,"reasoning_tokens":0,"estimated":false},"leftovers":[]},"error":null,"interrupts":[],"continues":null,"parent_run_id":null,"cut_calls":[],"bookmark":null}','[{"role":"user","content":[{"type":"text","text":"Three"}]},{"role":"assistant","content":[{"type":"text","text":"Three, indeed"}]}]');
INSERT INTO "andon_records" VALUES(4,'{"run_id":"r4","session":["helper","ada","s4"],"status":"PENDING","created_at":1754000000.5,"metadata":{"from":"version 1"},"stop_reason":null,"content":"","usage":null,"receipt":null,"error":null,"interrupts":[],"continues":null,"parent_run_id":null,"cut_calls":[],"bookmark":null}',NULL);
CREATE TABLE andon_runs (
	number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	run_id TEXT NOT NULL,
	session BIGINT NOT NULL,
	agent_id TEXT NOT NULL,
	user_id TEXT NOT NULL,
	session_id TEXT NOT NULL,
	status TEXT NOT NULL,
	owner TEXT,
	epoch INTEGER NOT NULL,
	lease_until DOUBLE,
	cancel TEXT,
	continues TEXT,
	last_seq INTEGER NOT NULL,
	created DOUBLE NOT NULL,
	ended DOUBLE,
	UNIQUE (run_id)
);
INSERT INTO "andon_runs" VALUES(1,'r1',1,'helper','ada','s1','COMPLETED',NULL,1,NULL,NULL,NULL,39,1754000000.5,1.7948513057656998634e+09);
INSERT INTO "andon_runs" VALUES(2,'r2',2,'helper','ada','s2','PAUSED',NULL,1,NULL,NULL,NULL,3,1754000000.5,NULL);
INSERT INTO "andon_runs" VALUES(3,'r3',3,'helper','ada','s3','CANCELLED',NULL,1,NULL,'{"cause":"user","reason":"enough","by":"ada","mode":"now","grace":null,"requested_at":1754000001.25}',NULL,4,1754000000.5,1.79485130583579730991e+09);
INSERT INTO "andon_runs" VALUES(4,'r4',4,'helper','ada','s4','RUNNING','me',1,1.79485130484292173388e+09,NULL,NULL,0,1754000000.5,NULL);
CREATE TABLE andon_sessions (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	agent_id TEXT NOT NULL,
	user_id TEXT NOT NULL,
	session_id TEXT NOT NULL,
	state TEXT NOT NULL,
	begun BOOLEAN NOT NULL,
	created DOUBLE NOT NULL,
	updated DOUBLE NOT NULL,
	CONSTRAINT andon_sessions_key UNIQUE (agent_id, user_id, session_id)
);
INSERT INTO "andon_sessions" VALUES(1,'helper','ada','s1','{}',1,1754000000.5,1.79485130576572680469e+09);
INSERT INTO "andon_sessions" VALUES(2,'helper','ada','s2','{}',1,1754000000.5,1.79485130580919694897e+09);
INSERT INTO "andon_sessions" VALUES(3,'helper','ada','s3','{}',1,1754000000.5,1.79485130583583021163e+09);
INSERT INTO "andon_sessions" VALUES(4,'helper','ada','s4','{}',0,1754000000.5,1754000000.5);
INSERT INTO "andon_sessions" VALUES(5,'helper','','empty','{"a":1}',1,1.7948513058652875423e+09,1.7948513058652875423e+09);
CREATE INDEX andon_sessions_age ON andon_sessions (updated);
CREATE INDEX andon_runs_line ON andon_runs (session, number);
CREATE INDEX andon_runs_live ON andon_runs (number) WHERE ended IS NULL;
CREATE INDEX andon_runs_ended ON andon_runs (ended);
CREATE INDEX andon_cancels_age ON andon_cancels (at);
CREATE INDEX andon_cancels_run ON andon_cancels (run_id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('andon_sessions',5);
INSERT INTO "sqlite_sequence" VALUES('andon_runs',4);
INSERT INTO "sqlite_sequence" VALUES('andon_cancels',1);
COMMIT;
