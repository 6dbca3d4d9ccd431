BEGIN TRANSACTION;
CREATE TABLE turns (
  n INTEGER PRIMARY KEY AUTOINCREMENT, conversation TEXT NOT NULL, event TEXT NOT NULL, tapped TEXT NOT NULL,
  received_at REAL NOT NULL, turn TEXT NOT NULL, unreadable INTEGER NOT NULL DEFAULT 0
);
INSERT INTO "turns" VALUES(1,'chat:1f1c5b2fad778434024f','e36608822510794','',1795204800.0,'{"event_id":"e36608822510794","conversation":{"channel":"chat","chat":"room"},"user_id":"cy","text":"spooled"}',0);
CREATE UNIQUE INDEX turns_of ON turns (conversation, event);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('turns',1);
COMMIT;
