import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.JsonEncoder;
import org.apache.avro.io.EncoderFactory;

/**
 * Reads values with Java's Avro. Each line of the input is the number of a schema and a value in base64; the schema is
 * the file of that number in the folder that is named. Each line of the output is the value in Avro's JSON encoding.
 */
public class ReadAvro {
    public static void main(String[] arguments) throws Exception {
        Map<String, Schema> schemas = new HashMap<>();
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] parts = line.split(" ", -1);
            Schema schema = schemas.get(parts[0]);
            if (schema == null) {
                String text = Files.readString(Path.of(arguments[0], parts[0] + ".avsc"));
                schema = new Schema.Parser().parse(text);
                schemas.put(parts[0], schema);
            }
            byte[] data = Base64.getDecoder().decode(parts[1]);
            BinaryDecoder decoder = DecoderFactory.get().binaryDecoder(data, null);
            Object value = new GenericDatumReader<Object>(schema).read(null, decoder);
            if (!decoder.isEnd()) {
                throw new IllegalStateException("bytes are left behind a value of schema " + parts[0]);
            }
            ByteArrayOutputStream text = new ByteArrayOutputStream();
            JsonEncoder encoder = EncoderFactory.get().jsonEncoder(schema, text, false);
            new GenericDatumWriter<Object>(schema).write(value, encoder);
            encoder.flush();
            out.println(text.toString(StandardCharsets.UTF_8));
        }
        out.flush();
    }
}
