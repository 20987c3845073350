<?xml version="1.0" encoding="UTF-8"?>
<!-- Users per square kilometre of a spatial histogram, in the colours of the dashboard. -->
<StyledLayerDescriptor version="1.0.0" xmlns="http://www.opengis.net/sld" xmlns:ogc="http://www.opengis.net/ogc">
  <NamedLayer>
    <Name>heat</Name>
    <UserStyle>
      <FeatureTypeStyle>
        <Rule>
          <Title>1–2 users/km²</Title>
          <ogc:Filter>
          <ogc:And>
            <ogc:PropertyIsGreaterThanOrEqualTo><ogc:PropertyName>density</ogc:PropertyName><ogc:Literal>1</ogc:Literal></ogc:PropertyIsGreaterThanOrEqualTo>
            <ogc:PropertyIsLessThan><ogc:PropertyName>density</ogc:PropertyName><ogc:Literal>2</ogc:Literal></ogc:PropertyIsLessThan>
          </ogc:And>
          </ogc:Filter>
          <PolygonSymbolizer><Fill>
            <CssParameter name="fill">#ffeda0</CssParameter>
            <CssParameter name="fill-opacity">0.85</CssParameter>
          </Fill></PolygonSymbolizer>
        </Rule>
        <Rule>
          <Title>2–5 users/km²</Title>
          <ogc:Filter>
          <ogc:And>
            <ogc:PropertyIsGreaterThanOrEqualTo><ogc:PropertyName>density</ogc:PropertyName><ogc:Literal>2</ogc:Literal></ogc:PropertyIsGreaterThanOrEqualTo>
            <ogc:PropertyIsLessThan><ogc:PropertyName>density</ogc:PropertyName><ogc:Literal>5</ogc:Literal></ogc:PropertyIsLessThan>
          </ogc:And>
          </ogc:Filter>
          <PolygonSymbolizer><Fill>
            <CssParameter name="fill">#fed976</CssParameter>
            <CssParameter name="fill-opacity">0.85</CssParameter>
          </Fill></PolygonSymbolizer>
        </Rule>
        <Rule>
          <Title>5–10 users/km²</Title>
          <ogc:Filter>
          <ogc:And>
            <ogc:PropertyIsGreaterThanOrEqualTo><ogc:PropertyName>density</ogc:PropertyName><ogc:Literal>5</ogc:Literal></ogc:PropertyIsGreaterThanOrEqualTo>
            <ogc:PropertyIsLessThan><ogc:PropertyName>density</ogc:PropertyName><ogc:Literal>10</ogc:Literal></ogc:PropertyIsLessThan>
          </ogc:And>
          </ogc:Filter>
          <PolygonSymbolizer><Fill>
            <CssParameter name="fill">#feb24c</CssParameter>
            <CssParameter name="fill-opacity">0.85</CssParameter>
          </Fill></PolygonSymbolizer>
        </Rule>
        <Rule>
          <Title>10–20 users/km²</Title>
          <ogc:Filter>
          <ogc:And>
            <ogc:PropertyIsGreaterThanOrEqualTo><ogc:PropertyName>density</ogc:PropertyName><ogc:Literal>10</ogc:Literal></ogc:PropertyIsGreaterThanOrEqualTo>
            <ogc:PropertyIsLessThan><ogc:PropertyName>density</ogc:PropertyName><ogc:Literal>20</ogc:Literal></ogc:PropertyIsLessThan>
          </ogc:And>
          </ogc:Filter>
          <PolygonSymbolizer><Fill>
            <CssParameter name="fill">#fd8d3c</CssParameter>
            <CssParameter name="fill-opacity">0.85</CssParameter>
          </Fill></PolygonSymbolizer>
        </Rule>
        <Rule>
          <Title>20–50 users/km²</Title>
          <ogc:Filter>
          <ogc:And>
            <ogc:PropertyIsGreaterThanOrEqualTo><ogc:PropertyName>density</ogc:PropertyName><ogc:Literal>20</ogc:Literal></ogc:PropertyIsGreaterThanOrEqualTo>
            <ogc:PropertyIsLessThan><ogc:PropertyName>density</ogc:PropertyName><ogc:Literal>50</ogc:Literal></ogc:PropertyIsLessThan>
          </ogc:And>
          </ogc:Filter>
          <PolygonSymbolizer><Fill>
            <CssParameter name="fill">#fc4e2a</CssParameter>
            <CssParameter name="fill-opacity">0.85</CssParameter>
          </Fill></PolygonSymbolizer>
        </Rule>
        <Rule>
          <Title>50–100 users/km²</Title>
          <ogc:Filter>
          <ogc:And>
            <ogc:PropertyIsGreaterThanOrEqualTo><ogc:PropertyName>density</ogc:PropertyName><ogc:Literal>50</ogc:Literal></ogc:PropertyIsGreaterThanOrEqualTo>
            <ogc:PropertyIsLessThan><ogc:PropertyName>density</ogc:PropertyName><ogc:Literal>100</ogc:Literal></ogc:PropertyIsLessThan>
          </ogc:And>
          </ogc:Filter>
          <PolygonSymbolizer><Fill>
            <CssParameter name="fill">#e31a1c</CssParameter>
            <CssParameter name="fill-opacity">0.85</CssParameter>
          </Fill></PolygonSymbolizer>
        </Rule>
        <Rule>
          <Title>≥ 100 users/km²</Title>
          <ogc:Filter>
          <ogc:PropertyIsGreaterThanOrEqualTo><ogc:PropertyName>density</ogc:PropertyName><ogc:Literal>100</ogc:Literal></ogc:PropertyIsGreaterThanOrEqualTo>
          </ogc:Filter>
          <PolygonSymbolizer><Fill>
            <CssParameter name="fill">#b10026</CssParameter>
            <CssParameter name="fill-opacity">0.85</CssParameter>
          </Fill></PolygonSymbolizer>
        </Rule>
        <Rule>
          <Title>fainter: perhaps nobody, the 95 % interval reaches 0</Title>
          <ogc:Filter>
          <ogc:And>
            <ogc:PropertyIsGreaterThanOrEqualTo><ogc:PropertyName>density</ogc:PropertyName><ogc:Literal>1</ogc:Literal></ogc:PropertyIsGreaterThanOrEqualTo>
            <ogc:PropertyIsLessThanOrEqualTo><ogc:PropertyName>low</ogc:PropertyName><ogc:Literal>0</ogc:Literal></ogc:PropertyIsLessThanOrEqualTo>
          </ogc:And>
          </ogc:Filter>
          <PolygonSymbolizer><Fill>
            <CssParameter name="fill">#ffffff</CssParameter>
            <CssParameter name="fill-opacity">0.5</CssParameter>
          </Fill></PolygonSymbolizer>
        </Rule>
      </FeatureTypeStyle>
    </UserStyle>
  </NamedLayer>
</StyledLayerDescriptor>
