BEGIN TRANSACTION;
CREATE TABLE bodies (
  pid TEXT PRIMARY KEY NOT NULL, record TEXT, mac TEXT NOT NULL, told TEXT, user TEXT, at INTEGER NOT NULL,
  repeatable INTEGER, erased_at INTEGER, sig TEXT NOT NULL
);
INSERT INTO "bodies" VALUES('c2c275622745844f2951e1','{"args":{"name":"A"},"args_digest":"b2c9ee672db13673e38e84d0da1a6e765c88b3d0f1dc65244d3f736045aa5c84","channel_id":"chat","conversation_id":"room","kind":"delete","language":"en","parser_version":"regex-v4:pt-en-es","pid":"c2c275622745844f2951e1","preview":"Delete A","reason":"''delete'' requires approval","requested_at":1795729369.933,"user_id":"ana"}','b7c78f182b1f7b73470ce00921e483dd0e1fa3754afc4d9d25ccc6afef78a9ef','deleted A','ana',1795729370211,0,NULL,'b23093329e4a2cee5c04e4809dadabaec7f06aa34ead69b96e93163649fa67fc');
CREATE TABLE entries (
  shard INTEGER NOT NULL, n INTEGER NOT NULL, text TEXT NOT NULL, head TEXT NOT NULL, sig TEXT NOT NULL,
  PRIMARY KEY (shard, n)
);
INSERT INTO "entries" VALUES(25,1,'{"n":1,"at":1795729370176,"pid":"c2c275622745844f2951e1","event":"armed","by":"","body":"b7c78f182b1f7b73470ce00921e483dd0e1fa3754afc4d9d25ccc6afef78a9ef","prev":"0000000000000000000000000000000000000000"}','82c3a0468434552858233cc305aa1ccb70c84281','322dbbd1ed0312dd9972e1a6a913d31ecc6dbde2ca3082168c9911956b5ff099');
INSERT INTO "entries" VALUES(25,2,'{"n":2,"at":1795729370181,"pid":"c2c275622745844f2951e1","event":"shown","by":"","body":"b7c78f182b1f7b73470ce00921e483dd0e1fa3754afc4d9d25ccc6afef78a9ef","prev":"82c3a0468434552858233cc305aa1ccb70c84281"}','7fa8420c36091f51ce752bb52a058682ba9672ed','4d301aee75be52bc8d00dcd64cf049925dd552ad1a1e2093ebe5fae565653e86');
INSERT INTO "entries" VALUES(25,3,'{"n":3,"at":1795729370190,"pid":"c2c275622745844f2951e1","event":"claimed","by":"e36608755286149","body":"b7c78f182b1f7b73470ce00921e483dd0e1fa3754afc4d9d25ccc6afef78a9ef","prev":"7fa8420c36091f51ce752bb52a058682ba9672ed"}','5116beb8095b5087f040de432527626eeb893a95','ad060208fbb093eef38dc2ec8d8d2c979ad92d1ae8db3c870d1ac42775cc7dc0');
INSERT INTO "entries" VALUES(25,4,'{"n":4,"at":1795729370192,"pid":"c2c275622745844f2951e1","event":"started","by":"e36608755286149","body":"b7c78f182b1f7b73470ce00921e483dd0e1fa3754afc4d9d25ccc6afef78a9ef","prev":"5116beb8095b5087f040de432527626eeb893a95"}','a84fccc292bc49cc38f0dc7beee8fc9ee379eb66','fb5c7465ce0b234fe0bc1f9f54cfda7a2446adbc7581893d3f32e96745e93006');
INSERT INTO "entries" VALUES(25,5,'{"n":5,"at":1795729370196,"pid":"c2c275622745844f2951e1","event":"done","by":"e36608755286149","body":"b7c78f182b1f7b73470ce00921e483dd0e1fa3754afc4d9d25ccc6afef78a9ef","prev":"a84fccc292bc49cc38f0dc7beee8fc9ee379eb66"}','be8a0fd5326453c9a2eebdb1be19aefbc517ce11','5264aa5cf22e7a8383f2ed39a86b3fae37336f5591d829be7103abf2b4268a5d');
CREATE TABLE rivals (
  shard INTEGER NOT NULL, n INTEGER NOT NULL, text TEXT NOT NULL, head TEXT NOT NULL, sig TEXT NOT NULL,
  PRIMARY KEY (shard, n, text)
);
CREATE INDEX bodies_of_user ON bodies (user);
CREATE TRIGGER bodies_change BEFORE UPDATE ON bodies
  WHEN NEW.pid IS NOT OLD.pid OR OLD.erased_at IS NOT NULL
    OR (NEW.erased_at IS NULL AND (NEW.mac IS NOT OLD.mac OR NEW.record IS NOT OLD.record))
    OR (NEW.erased_at IS NOT NULL AND (NEW.mac IS NOT OLD.mac OR coalesce(NEW.record, NEW.told, NEW.user) IS NOT NULL))
  BEGIN SELECT RAISE(ABORT, 'a body may only get its outcome, or be erased'); END;
CREATE TRIGGER bodies_delete BEFORE DELETE ON bodies
  BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TRIGGER entries_insert BEFORE INSERT ON entries
  WHEN EXISTS (SELECT 1 FROM entries WHERE shard = NEW.shard AND n = NEW.n)
  BEGIN SELECT RAISE(IGNORE); END;
CREATE TRIGGER entries_update BEFORE UPDATE ON entries
  BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TRIGGER entries_delete BEFORE DELETE ON entries
  BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TRIGGER rivals_insert BEFORE INSERT ON rivals
  WHEN EXISTS (SELECT 1 FROM rivals WHERE shard = NEW.shard AND n = NEW.n AND text = NEW.text)
  BEGIN SELECT RAISE(IGNORE); END;
CREATE TRIGGER rivals_update BEFORE UPDATE ON rivals
  BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TRIGGER rivals_delete BEFORE DELETE ON rivals
  BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
COMMIT;
